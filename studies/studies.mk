# The Makefile of the repository includes this file; paths are relative to the root.

.PHONY: results results-page demo-vllm

# Studies on real models: each takes hours, resumes after an interruption, and reads benchmark files from data/
RUNS := runs
SUMMARIES := $(patsubst docs/results/real/%.yaml,$(RUNS)/%/summary.json,$(wildcard docs/results/real/*.yaml))
CALIBRATION := $(RUNS)/calibration
CALIBRATED := $(patsubst %,$(CALIBRATION)/%.json,smollm2-released smollm2-paper smollm2-siw smollm2-ape \
	gemma3-270m-released gemma3-270m-paper)
results: $(SUMMARIES) $(CALIBRATED)

$(RUNS)/%/summary.json: docs/results/real/%.yaml | $(TOOLS) $(MODELS)
	$(BIN)/ragbias bench $< --out $(@D)

$(CALIBRATION)/questions.jsonl: | $(TOOLS)
	mkdir -p $(@D)
	$(BIN)/python -m studies.calibration_questions \
		data/mdqa_real_distractors/nq-open-10_total_documents_gold_at_0.jsonl.gz $@

$(CALIBRATION)/fewer.jsonl: $(CALIBRATION)/questions.jsonl
	head -n 18 $< > $@

# exits with 1 if nothing beats the plain model, but also writes the record in that case
SETTINGS = --model $* --data $< --depths 3 --dtype bfloat16 --out $@
CALIBRATE = $(BIN)/ragbias calibrate $(SETTINGS)
SEARCH = $(BIN)/python -m studies.parameter_search $(SETTINGS)
$(CALIBRATION)/%-released.json: $(CALIBRATION)/questions.jsonl | $(MODELS)
	$(CALIBRATE) --strings 300 || test -f $@
$(CALIBRATION)/%-paper.json: $(CALIBRATION)/questions.jsonl | $(MODELS)
	$(CALIBRATE) --strings 300 --variant paper || test -f $@
$(CALIBRATION)/%-siw.json: $(CALIBRATION)/fewer.jsonl | $(MODELS)
	$(SEARCH) --method siw || test -f $@
$(CALIBRATION)/%-ape.json: $(CALIBRATION)/questions.jsonl | $(MODELS)
	$(SEARCH) --method ape

# records of finished runs, with the tables and the advice that follow from them
results-page: venv
	$(BIN)/python -m studies.publish $(RUNS)

# vLLM with stored documents beside stock vLLM; about ten minutes on two cores
demo-vllm: vllm
	$(VLLM_VENV)/bin/python -m studies.vllm_demo --models tiny,smollm2
