"""The tables and figures of both papers for one task, with the papers' numbers beside ours."""
