package prebuilt

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// Verify downloads all that is pinned, for all architectures, and returns what does not have its digest, its programs or its architecture.
// It keeps nothing. progress is called with lines about what happens.
func Verify(ctx context.Context, progress func(string)) error {
	pins, err := parsePins(makers)
	if err != nil {
		return err
	}
	f, err := newFetcher(os.Getenv(MirrorVariable), defaultLimits)
	if err != nil {
		return err
	}
	return verifyAll(ctx, pins, f, progress)
}

func verifyAll(ctx context.Context, pins []*pin, f *fetcher, progress func(string)) error {
	var problems []error
	for _, p := range pins {
		architectures := []string{"amd64", "arm64"}
		if p.architecture != "*" {
			architectures = []string{p.architecture}
		}
		for _, architecture := range architectures {
			name := fmt.Sprintf("%s for %s/%s", p.title(), p.system, architecture)
			if err := p.verify(ctx, f, architecture, progress); err != nil {
				problems = append(problems, fmt.Errorf("%s: %w", name, err))
				continue
			}
			progress(name + ": as pinned")
		}
	}
	return errors.Join(problems...)
}

func (p *pin) verify(ctx context.Context, f *fetcher, architecture string, progress func(string)) error {
	dir, err := os.MkdirTemp("", "stack-controller-verify-")
	if err != nil {
		return err
	}
	return errors.Join(p.fetch(ctx, f, dir, architecture, progress), os.RemoveAll(dir))
}
