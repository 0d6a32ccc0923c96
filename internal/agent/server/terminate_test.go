package server

import (
	"bytes"
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
)

// inAPod returns the option of an agent that is killed this long after it is asked to end.
func inAPod(grace time.Duration) func(*Options) {
	return func(options *Options) { options.TerminationGrace = grace }
}

// endInBackground asks the agent to end, and returns a channel that receives the result.
func (a *agent) endInBackground() <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- a.stop() }()
	return ended
}

func TestATerminatingAgentAnswersUntilItsOperationsAreForgotten(t *testing.T) {
	a := startAgent(t, t.TempDir(), inAPod(time.Hour))
	a.runner.endBy = make(chan time.Time, 1)
	a.start("earlier")
	a.finish("earlier", &agentpb.Operation{State: succeeded})
	a.start("a")
	watched := make(chan *agentpb.Operation, 100)
	go func() { _, _ = a.WatchOperation(t.Context(), "a", func(o *agentpb.Operation) { watched <- o }) }()
	a.Eventually(watched).WithTimeout(patience).Should(Receive(HaveField("State", running)))

	ended := a.endInBackground()
	a.Eventually(watched).WithTimeout(patience).Should(Receive(HaveField("State", isInterrupted)))
	var end time.Time
	a.Expect(a.runner.endBy).To(Receive(&end))
	a.Expect(end).To(BeTemporally("~", time.Now().Add(time.Hour-terminationReserve), patience))
	a.Expect(a.GetOperation(t.Context(), "a")).To(HaveField("State", isInterrupted))
	a.Expect(a.GetInfo(t.Context())).To(HaveField("Operations", HaveLen(2)))
	a.Expect(a.StartOperation(t.Context(), request("b"))).Error().To(MatchError(client.ErrUnavailable))
	a.Expect(a.PushSource(t.Context(), "sha256:"+sixtyFour, 1, bytes.NewReader([]byte{0}))).To(MatchError(client.ErrUnavailable))

	a.Expect(a.ForgetOperation(t.Context(), "a")).To(Succeed())
	a.Consistently(ended).WithTimeout(300 * time.Millisecond).ShouldNot(Receive())
	a.Expect(a.ForgetOperation(t.Context(), "earlier")).To(Succeed())
	// This is well before the agent would stop waiting.
	a.Eventually(ended).WithTimeout(lingerTimeout / 2).Should(Receive(BeNil()))
}

// sixtyFour is the hexadecimal part of a digest.
const sixtyFour = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestATerminatingAgentWithoutOperationsEndsAtOnce(t *testing.T) {
	a := startAgent(t, t.TempDir(), inAPod(time.Hour))
	a.Expect(a.GetInfo(t.Context())).NotTo(BeNil())
	a.Eventually(a.endInBackground()).WithTimeout(lingerTimeout / 2).Should(Receive(BeNil()))
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
	a := startAgent(t, t.TempDir())
	a.runner.endBy = make(chan time.Time, 1)
	a.runner.run = func(ctx context.Context, _ call) *agentpb.Operation {
		<-ctx.Done()
		return stopped(ctx)
	}
	a.accept(request("a"))
	a.Eventually(a.endInBackground()).WithTimeout(lingerTimeout / 2).Should(Receive(BeNil()))
	a.Expect(a.runner.endBy).NotTo(Receive())
}
