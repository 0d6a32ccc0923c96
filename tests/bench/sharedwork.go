package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/tests/measure"
	"github.com/stack-controller/stack-controller/tests/sharedwork"
	"github.com/stack-controller/stack-controller/tests/worstobjects"
)

// maxSharedWork limits the time that an object of a tenant may take in a goroutine that all tenants share, in milliseconds.
const maxSharedWork = 10.0

// benchSharedWork measures the work in shared goroutines with the objects that cost most.
func benchSharedWork(ctx context.Context, s settings, limits *measure.Limits, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "stack-bench-")
	if err != nil {
		return fmt.Errorf("create a directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	works, err := sharedwork.New(ctx, dir)
	if err != nil {
		return err
	}
	t := measure.NewTable(out, "work in shared goroutines, worst object", "read, decode, transform", "the object", "indexes, handlers", "the object")
	for _, kind := range worstobjects.Kinds {
		var received, handled worst
		for name, object := range worstobjects.Of(kind) {
			if err := measureSharedWork(works[kind], s.runs, name, object, &received, &handled); err != nil {
				return fmt.Errorf("%s with %s: %w", kind.Kind, name, err)
			}
		}
		t.Cells(kind.Kind, milliseconds(received.took), received.name, milliseconds(handled.took), handled.name)
		limits.Check("reading the worst "+kind.Kind+", in ms", float64(received.took)/1e6, maxSharedWork)
		limits.Check("indexes and handlers of the worst "+kind.Kind+", in ms", float64(handled.took)/1e6, maxSharedWork)
	}
	t.Flush()
	return nil
}

// worst is what took longest.
type worst struct {
	took time.Duration
	name string
}

func (w *worst) add(name string, samples measure.Samples) {
	if took := samples.Median(); took > w.took {
		w.took, w.name = took, name
	}
}

func measureSharedWork(work *sharedwork.Work, runs int, name, object string, received, handled *worst) error {
	var reading, handling measure.Samples
	for range runs {
		start := time.Now()
		kept, err := work.Receive(object)
		if err != nil {
			return err
		}
		reading = append(reading, time.Since(start))
		after := kept.DeepCopyObject().(client.Object)
		after.SetGeneration(2)
		after.SetResourceVersion("2")
		start = time.Now()
		work.Index(kept)
		work.Handle(kept, after)
		handling = append(handling, time.Since(start))
	}
	received.add(name, reading)
	handled.add(name, handling)
	return nil
}

// milliseconds formats a time that may be shorter than a millisecond.
func milliseconds(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d)/1e6) }
