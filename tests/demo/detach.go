package main

import (
	"context"
	"os"
	"path/filepath"

	"github.com/stack-controller/stack-controller/tests/background"
)

// detach runs the demo in a process of its own that goes on after the show, and returns when the show is over.
func detach(ctx context.Context) error { return background.Start(ctx, "demo", "-detached") }

// runDetached shows everything and then waits, without a terminal, until it is told to end.
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
	if err := background.LetGo(filepath.Join(d.dir, "demo.log")); err != nil {
		return d.stop(err)
	}
	<-ctx.Done()
	return d.stop(nil)
}
