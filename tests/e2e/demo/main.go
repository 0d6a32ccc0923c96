// Command demo shows stack-controller at work on one machine, with real servers and without privileges: a commit in a git
// repository becomes a succeeded "pulumi up". Run it with "make demo", "make demo KEEP=1" and "make demo-clean". The command start, which
// make runs, prepares the programs that it needs.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stack-controller/stack-controller/tests/framework/background"
	"github.com/stack-controller/stack-controller/tests/framework/command"
	"github.com/stack-controller/stack-controller/tests/framework/leftovers"
)

func main() { command.Main("demo", run) }

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	keep := flags.Bool("keep", false, "leave everything running in the background")
	detached := flags.Bool("detached", false, "for internal use: this is the process in the background")
	clean := flags.Bool("clean", false, "end and remove what earlier runs left, and do nothing else")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case *clean:
		return cleanAll(os.Stdout)
	case *detached:
		return runDetached(ctx)
	case *keep:
		return detach(ctx)
	default:
		return runOnce(ctx)
	}
}

// runOnce runs the demo and removes everything it created.
func runOnce(ctx context.Context) error {
	d, err := newDemo(os.Stdout)
	if err != nil {
		return err
	}
	err = d.show(ctx)
	if ctx.Err() != nil {
		err = fmt.Errorf("interrupted; everything that it started was stopped and removed")
	}
	return d.stop(err)
}

// detach runs the demo in a background process, which continues after the demo. detach returns when the demo is over.
func detach(ctx context.Context) error { return background.Start(ctx, "demo", "-detached") }

// runDetached runs the demo and then waits, without a terminal, until it is asked to end.
func runDetached(ctx context.Context) error {
	background.Enter()
	d, err := newDemo(os.Stdout)
	if err != nil {
		return err
	}
	if err := d.show(ctx); err != nil {
		return d.stop(err)
	}
	d.plain(d.invitation())
	if err := background.SignalReady(filepath.Join(d.dir, "demo.log")); err != nil {
		return d.stop(err)
	}
	<-ctx.Done()
	return d.stop(nil)
}

// indent is the indentation of everything below the title of a step.
const indent = "      "

// printer prints numbered steps with the time since the start.
type printer struct {
	out   io.Writer
	start time.Time
	step  int
	steps int
}

func newPrinter(out io.Writer, steps int) *printer {
	return &printer{out: out, start: time.Now(), steps: steps}
}

// title starts a step.
func (p *printer) title(format string, args ...any) {
	p.step++
	title := fmt.Sprintf(format, args...)
	_, _ = fmt.Fprintf(p.out, "\n[%d/%d] %-66s %6.1fs\n", p.step, p.steps, title, time.Since(p.start).Seconds())
}

// text prints lines below the title.
func (p *printer) text(format string, args ...any) {
	_, _ = fmt.Fprintln(p, strings.TrimRight(fmt.Sprintf(format, args...), "\n"))
}

// Write prints whole lines below the title.
func (p *printer) Write(lines []byte) (int, error) {
	for line := range bytes.Lines(lines) {
		if _, err := io.WriteString(p.out, strings.TrimRight(indent+string(line), " \n")+"\n"); err != nil {
			return 0, err
		}
	}
	return len(lines), nil
}

// plain prints text that is not part of a step.
func (p *printer) plain(text string) {
	_, _ = io.WriteString(p.out, text)
}

// recordKind is the kind of the records of demos.
const recordKind = "demo"

// cleanAll ends every demo of this user and removes what crashed demos left.
func cleanAll(out io.Writer) error {
	running, err := leftovers.Records(recordKind, true)
	if err != nil {
		return err
	}
	for _, r := range running {
		if err := r.End(); err != nil {
			return err
		}
		_, _ = fmt.Fprintln(out, "removed the demo in", strings.Join(r.Directories, ", "))
	}
	if err := leftovers.Sweep(out); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(out, "nothing else to clean up")
	return nil
}
