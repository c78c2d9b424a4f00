"""Files, formats, threads, clocks and text: used by many packages, and about nothing of the field."""
