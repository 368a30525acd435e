"""What each screen shows, as tables of cells: one module a screen. Pure: a picture in, cells out."""
