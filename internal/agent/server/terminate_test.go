package server

import (
	"bytes"
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// inAPod makes the agent one that is killed this long after it is asked to end.
func inAPod(grace time.Duration) func(*Options) {
	return func(options *Options) { options.TerminationGrace = grace }
}

// endInBackground asks the agent to end, and returns what has the result once it did.
func (a *agent) endInBackground() <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- a.stop() }()
	return ended
}

func TestATerminatingAgentAnswersUntilItsOperationsAreForgotten(t *testing.T) {
	g := NewWithT(t)
	a := startAgent(t, t.TempDir(), inAPod(time.Hour))
	a.runner.endBy = make(chan time.Time, 1)
	a.start("earlier")
	a.finish("earlier", &proto.Operation{State: succeeded})
	a.start("a")
	watched := make(chan *proto.Operation, 100)
	go func() { _, _ = a.WatchOperation(t.Context(), "a", func(o *proto.Operation) { watched <- o }) }()
	g.Eventually(watched).WithTimeout(patience).Should(Receive(HaveField("State", running)))

	ended := a.endInBackground()
	g.Eventually(watched).WithTimeout(patience).Should(Receive(HaveField("State", isInterrupted)))
	var end time.Time
	g.Expect(a.runner.endBy).To(Receive(&end))
	g.Expect(end).To(BeTemporally("~", time.Now().Add(time.Hour-terminationReserve), patience))
	g.Expect(a.GetOperation(t.Context(), "a")).To(HaveField("State", isInterrupted))
	g.Expect(a.GetInfo(t.Context())).To(HaveField("Operations", HaveLen(2)))
	_, err := a.StartOperation(t.Context(), request("b"))
	g.Expect(err).To(MatchError(client.ErrUnavailable))
	g.Expect(a.PushSource(t.Context(), "sha256:"+sixtyFour, 1, bytes.NewReader([]byte{0}))).To(MatchError(client.ErrUnavailable))

	g.Expect(a.ForgetOperation(t.Context(), "a")).To(Succeed())
	g.Consistently(ended).WithTimeout(300 * time.Millisecond).ShouldNot(Receive())
	g.Expect(a.ForgetOperation(t.Context(), "earlier")).To(Succeed())
	// Well before it would have given up.
	g.Eventually(ended).WithTimeout(lingerTimeout / 2).Should(Receive(BeNil()))
}

// sixtyFour are the digits of a digest.
const sixtyFour = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestATerminatingAgentWithoutOperationsEndsAtOnce(t *testing.T) {
	g := NewWithT(t)
	a := startAgent(t, t.TempDir(), inAPod(time.Hour))
	g.Expect(a.GetInfo(t.Context())).NotTo(BeNil())
	g.Eventually(a.endInBackground()).WithTimeout(lingerTimeout / 2).Should(Receive(BeNil()))
}

func TestATerminatingAgentThatNobodyAsksEndsBeforeItIsKilled(t *testing.T) {
	g := NewWithT(t)
	const grace = 3 * time.Second
	a := startAgent(t, t.TempDir(), inAPod(grace))
	a.start("a")
	_ = a.Close()
	killed := time.Now().Add(grace)
	g.Eventually(a.endInBackground()).WithTimeout(patience).Should(Receive(BeNil()))
	g.Expect(time.Now()).To(BeTemporally("<", killed))
}

func TestAnAgentThatIsNotKilledDoesNotWaitForAnybody(t *testing.T) {
	g := NewWithT(t)
	a := startAgent(t, t.TempDir())
	a.runner.endBy = make(chan time.Time, 1)
	a.runner.run = func(ctx context.Context, _ call) *proto.Operation {
		<-ctx.Done()
		return stopped(ctx)
	}
	_, err := a.StartOperation(t.Context(), request("a"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(a.endInBackground()).WithTimeout(lingerTimeout / 2).Should(Receive(BeNil()))
	g.Expect(a.runner.endBy).NotTo(Receive())
}
