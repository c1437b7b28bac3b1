"""``python -m studies.speed`` with its options."""

import json
from pathlib import Path

import pytest

from ragbias.cli.terminal import console
from studies.speed import SpeedSettings, main

QUICK = ("--rounds", 1, "--steps", 1)


@pytest.fixture
def speed(monkeypatch, capsys):
    """Run the study. Return exit code, output and errors."""

    def run(*arguments, width=80):
        monkeypatch.setattr(console, "width", width)
        code = 0
        try:
            main(list(map(str, arguments)))
        except SystemExit as ended:
            code = ended.code
        output = capsys.readouterr()
        return code, output.out, output.err

    return run


def test_the_file_holds_everything_needed_to_repeat_it(speed, config, tmp_path):
    out = tmp_path / "speed.json"
    options = ("--documents", "2,5", "--total-tokens", 21, "--batch", 2, "--dtype", "bfloat16")
    code, output, errors = speed(
        "--model", config, "--methods", "pine,siw(layers=(1,1))", *options, *QUICK, "--json", out
    )
    assert (code, errors) == (0, "")
    assert "2 documents of 10 to 11 tokens" in output and "5 documents of 4 to 5 tokens" in output
    written = json.loads(out.read_text())
    assert set(written) == {"settings", "model", "versions", "machine", "results"}
    assert written["settings"]["methods"] == "pine,siw(layers=(1,1))"
    assert {"documents": [2, 5], "total_tokens": 21, "batch": 2, "rounds": 1}.items() <= written["settings"].items()
    model = written["model"]
    assert (model["weights"], model["dtype"], model["device"], model["attention"]) == (
        "random", "bfloat16", "cpu", "sdpa"
    )  # fmt: skip
    assert json.loads(Path(config).read_text()).items() <= model["config"].items()
    assert set(written["versions"]) == {"ragbias", "torch", "transformers"}
    assert written["machine"]["threads"] >= 1 and written["machine"]["processor"]
    assert [result["documents"] for result in written["results"]] == [2, 5]
    assert [result["lengths"] for result in written["results"]] == [[[11, 10]] * 2, [[5, 4, 4, 4, 4]] * 2]
    for result in written["results"]:
        assert list(result["methods"]) == ["none", "pine", "siw(layers=(1,1))"]
        assert set(result["methods"]["pine"]) == {
            "prefill_seconds", "first_token_seconds", "decode_seconds", "peak_bytes",
            "prefill_ratio", "first_token_ratio", "decode_ratio", "peak_ratio", "prefill_limit", "decode_limit",
        }  # fmt: skip


def test_settings_are_written_as_they_run():
    plain = SpeedSettings("pine")
    assert (plain.shape, plain.layers, plain.tokens) == ("1b", 2, 100)
    given = SpeedSettings("pine", model="tiny", total_tokens=50)
    assert (given.shape, given.layers, given.tokens) == (None, None, None)


@pytest.mark.parametrize("width", [80, 120])
def test_tables_keep_every_figure_on_its_methods_line(speed, width):
    names = ["structured-prompting", "position-interpolation", "channel-scaling(channel=1,factor=0.5,layers=(0,1))"]
    sizes = ("--documents", 2, "--tokens", 5)
    code, output, errors = speed("--model", "tiny", "--methods", ",".join(names), *sizes, *QUICK, width=width)
    assert (code, errors) == (0, "")
    lines = output.splitlines()
    assert max(map(len, lines)) <= width
    for name in (*names[:2], "none"):
        rows = [line.split() for line in lines if line.startswith(name)]
        assert [len(row) for row in rows] == [7, 7]  # the range stands after its ratio
        assert all(row[2].replace(".", "").isdigit() and row[3].startswith("(") for row in rows)
    header = [line for line in lines if line.startswith("method")]
    assert [each.split() for each in header] == [
        ["method", "prefill", "s", "ratio", "(range)", "limit", "first", "token", "s", "ratio"],
        ["method", "decode", "ms", "ratio", "(range)", "limit", "peak", "MiB", "ratio"],
    ]


def test_a_plot_is_drawn_over_several_numbers_of_documents(speed, config, tmp_path):
    plot = tmp_path / "scaling.png"
    sizes = ("--documents", "2,4,8", "--tokens", 4, "--ragged")
    code, output, _ = speed("--model", config, "--methods", "pine,pcw", *sizes, *QUICK, "--plot", plot)
    assert (code, "scaling.png" in output.replace("\n", "")) == (0, True)
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--methods", "pin"], "unknown method 'pin'"),
        (["--methods", "pine,attention-sorting"], "attention-sorting needs several passes"),
        (["--methods", "permutation-vote"], "use `ragbias bench`, which measures the cost"),
        (["--methods", "rotor(selective=True)"], "rotor(selective=True) needs several passes"),
        (["--methods", "channel-scaling(channel=1,factor=0,layers=(0,9))"], "do not fit a model of 2 layers"),
        (["--shape", "2b"], "shape='2b'; expected one of '1b', '8b'"),
        (["--shape", "1b", "--model", "tiny"], "leave out one of them"),
        (["--model", "tiny", "--layers", "2"], "leave out one of them"),
        (["--model", "/nonexistent/config.json"], "the file does not exist"),
        (["--model", "/nonexistent/model"], "/nonexistent/model"),
        (["--dtype", "int8"], "dtype='int8'; expected one of"),
        (["--device", "tpu"], "device='tpu'; expected one of 'cpu', 'cuda'"),
        (["--documents", "2,x"], "argument --documents: invalid numbers value: '2,x'"),
        (["--documents", "0"], "documents=0; expected a whole number from 1 to 10,000"),
        (["--tokens", "5", "--total-tokens", "50"], "give one of them"),
        (["--documents", "20", "--total-tokens", "19"], "expected at least one for each"),
        (["--documents", "20", "--plot", "x.png"], "--plot needs several numbers of documents"),
        (["--documents", "2000"], "the model's window has 131072"),
        (["--documents", "99999999999999999999999"], "expected a whole number from 1 to 10,000"),
        (["--rounds", "0"], "rounds=0; expected a whole number from 1 to 1,000"),
        (["--documents", "2", "--total-tokens", "999999"], "the model's window has 131072"),
    ],
)
def test_bad_input_ends_with_code_2_and_says_what_is_wrong(speed, arguments, words):
    code, _, errors = speed(*arguments)
    assert code == 2
    assert words in " ".join(errors.replace("│", " ").split())
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "t5"}, "architecture 't5'"),
        ({"model_type": "gpt2"}, "architecture 'gpt2'"),
        ({"model_type": "llama", "hidden_size": -5}, "transformers refuses its config"),
    ],
)
def test_a_config_that_cannot_be_measured_is_refused_at_once(speed, tmp_path, config, words):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    code, _, errors = speed("--model", str(path), "--documents", "2")
    assert code == 2
    assert words in " ".join(errors.split())
    assert "Traceback" not in errors
