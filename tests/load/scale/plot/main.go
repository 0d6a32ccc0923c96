// plot draws lines over the number of Stacks. It reads a Plot as JSON from standard input and writes an SVG file:
//
//	plot FILE
//
// It is a Go module of its own, so that the libraries that draw are no dependencies of the product.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// Plot is what is drawn.
type Plot struct {
	// Unit is the unit of the values.
	Unit  string
	Lines []struct {
		Name   string
		Points plotter.XYs
	}
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: plot FILE")
		os.Exit(2)
	}
	if err := draw(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

func draw(path string) error {
	var wanted Plot
	if err := json.NewDecoder(os.Stdin).Decode(&wanted); err != nil {
		return fmt.Errorf("read what to draw: %w", err)
	}
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = "Stacks", wanted.Unit
	p.X.Min, p.Y.Min = 0, 0
	p.Legend.Top, p.Legend.Left = true, true
	var series []any
	for _, line := range wanted.Lines {
		series = append(series, line.Name, line.Points)
	}
	if err := plotutil.AddLinePoints(p, series...); err != nil {
		return err
	}
	// There is space for the last numbers and the names.
	p.X.Max, p.Y.Max = 1.05*p.X.Max, 1.2*p.Y.Max
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.TickerFunc(ticks), plot.TickerFunc(ticks)
	return p.Save(16*vg.Centimeter, 9*vg.Centimeter, path)
}

// ticks are the usual ones, with whole numbers.
func ticks(from, to float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(from, to)
	for i := range ticks {
		if ticks[i].Label != "" {
			ticks[i].Label = strconv.FormatFloat(ticks[i].Value, 'f', -1, 64)
		}
	}
	return ticks
}
