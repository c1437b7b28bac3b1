"""Keys of a report as plain data, for both integrations."""

REPORT_KEYS = {
    "method_requested",
    "method_ran",
    "source",
    "spans",
    "n_expected",
    "n_found",
    "reason",
    "backend",
    "order",
    "numbering",
    "n_left_plain",
    "segmentation_changed",
    "cached_tokens",
    "reader",
}
