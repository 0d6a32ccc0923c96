package command

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/cmd/flux-pulumi/print"
)

// What is known of an object is not hidden by the one call that the timeout cuts short.
func TestTimeoutEndsWithWhatIsKnown(t *testing.T) {
	limiter := errors.New("client rate limiter Wait returned an error: rate: Wait(n=1) would exceed context deadline")
	for name, test := range map[string]struct {
		answers []error
		want    string
	}{
		"the last call is cut short": {[]error{nil, nil, limiter}, "x is not ready after 1.2s: working: on it"},
		"no answer for longer":       {[]error{nil, limiter, limiter}, "x is not ready after 1.2s: the API server does not answer: " + limiter.Error()},
		"no answer at all":           {[]error{limiter, limiter, limiter}, "x is not ready after 1.2s: the API server does not answer: " + limiter.Error()},
		"an answer again":            {[]error{limiter, limiter, nil}, "x is not ready after 1.2s: working: on it"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &session{log: print.New(io.Discard, func(string) string { return "" })}
				calls := 0
				err := s.await(t.Context(), 1200*time.Millisecond, "x", func(context.Context) (progress, error) {
					calls++
					return progress{state: "working", detail: "on it"}, test.answers[calls-1]
				})
				g := NewWithT(t)
				g.Expect(err).To(MatchError(test.want))
				g.Expect(calls).To(Equal(3))
			})
		})
	}
}
