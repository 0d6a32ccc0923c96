package main

import (
	"fmt"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// line is a series of points over the number of Stacks.
type line struct {
	name   string
	points plotter.XYs
}

func (l *line) add(stacks int, value float64) {
	l.points = append(l.points, plotter.XY{X: float64(stacks), Y: value})
}

// draw writes a plot of the lines to an SVG file. The unit is that of the values.
func draw(path, unit string, lines []line) error {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = "Stacks", unit
	p.X.Min, p.Y.Min = 0, 0
	p.Legend.Top, p.Legend.Left = true, true
	var series []any
	for _, l := range lines {
		series = append(series, l.name, l.points)
	}
	if err := plotutil.AddLinePoints(p, series...); err != nil {
		return fmt.Errorf("draw %s: %w", path, err)
	}
	if err := p.Save(16*vg.Centimeter, 9*vg.Centimeter, path); err != nil {
		return fmt.Errorf("draw %s: %w", path, err)
	}
	return nil
}
