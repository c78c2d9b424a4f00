"""Charts and tables as plain JSON, for whatever draws them."""

from kenyon.views.form import View, ViewError, checked
from kenyon.views.make import Bar, Series, bars, heatmap, images, lines, numbers, scatter, table

__all__ = [
    "Bar",
    "Series",
    "View",
    "ViewError",
    "bars",
    "checked",
    "heatmap",
    "images",
    "lines",
    "numbers",
    "scatter",
    "table",
]
