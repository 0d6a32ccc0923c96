package rollout

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/waves"
)

func TestStatusIsBounded(t *testing.T) {
	f := newFleet(t)
	f.rollout.Spec.MaxConcurrent, f.rollout.Spec.MaxFailures = number(200), number(5000)
	f.rollout.Spec.Waves = nil
	for i := range 20 {
		wave := autov1alpha1.RolloutWave{Name: fmt.Sprintf("%s%02d", repeat("w", 61), i)}
		if i < 19 {
			wave.Stacks, wave.Limit = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": fmt.Sprint(i)}}, percent("100%")
		}
		f.rollout.Spec.Waves = append(f.rollout.Spec.Waves, wave)
	}
	f.stacks = nil
	for i := range 500 {
		stack := f.add(fmt.Sprintf("%s%d", repeat("n", 250), i), false)
		stack.Namespace = repeat("t", 63)
		if i%2 == 0 {
			stack.Spec.Approval = &pulumiv1.ApprovalPolicy{}
		}
	}
	for i := range maxRefused {
		f.refused = append(f.refused, autov1alpha1.RolloutFailure{Stack: f.stacks[i].Name, Message: repeat("m", 200)})
	}
	for i := range 100 {
		f.offer = new(autov1alpha1.RolloutRevision{Revision: fmt.Sprintf("%s@sha1:%040x", repeat("b", 200), i), Digest: fmt.Sprintf("sha256:%064x", i)})
		f.decide()
		f.stacks[i].Status.LastUpdate.LastSuccessfulCommit = f.offer.Digest
	}
	f.Expect(len(f.rollout.Status.Earlier)).To(And(BeNumerically(">=", maxEarlier), BeNumerically("<=", maxKept)))
	f.offers("9")
	f.finish("9")
	f.rollout.Spec.Waves[19].NoDrift = true
	f.offers("f")
	for i, stack := range f.stacks[150:169] {
		stack.Labels = map[string]string{"tier": fmt.Sprint(i)}
		succeed(stack, "f")
	}
	for _, stack := range f.stacks[100:150] {
		fail(stack, "f")
		stack.Status.LastUpdate.Message = strings.Repeat("\"", 200)
	}
	f.decide()
	f.Expect(len(f.rollout.Status.Failing)).To(And(BeNumerically(">", 0), BeNumerically("<=", maxFailing)))
	f.Expect(f.turns()).NotTo(BeEmpty())
	f.Expect(lengthOf(f.rollout.Status)).To(And(BeNumerically(">", maxStatus*3/4), BeNumerically("<", maxStatus)))
	f.isKeptWhole()

	// With 20 waves and names as most have, the status has room for about as many as may be updated at once.
	for i, stack := range f.stacks {
		stack.Namespace, stack.Name = fmt.Sprintf("team-%02d", i%20), fmt.Sprintf("infrastructure-production-%d", i)
	}
	for _, stack := range f.stacks[100:150] {
		stack.Status.LastUpdate.Message = "quota exceeded"
	}
	for i := range f.rollout.Spec.Waves {
		f.rollout.Spec.Waves[i].Name = fmt.Sprintf("production-%d", i)
	}
	f.decide()
	f.Expect(len(f.turns())).To(BeNumerically(">", 180))
	f.Expect(f.rollout.Status.Failing).To(HaveLen(maxFailing))
	f.Expect(len(f.rollout.Status.Plans)).To(BeNumerically(">", 150))
	f.Expect(lengthOf(f.rollout.Status)).To(BeNumerically("<", maxStatus))
	f.isKeptWhole()

	// A spec that is large itself leaves less room.
	for i := range f.rollout.Spec.Waves {
		f.rollout.Spec.Waves[i].Check = "true" + repeat(" ", 400)
	}
	f.rollout.Status.Turns = nil
	f.decide()
	f.Expect(len(f.turns())).To(And(BeNumerically(">", 90), BeNumerically("<", 150)))
	f.isKeptWhole()
	f.rollout.Annotations, f.rollout.Status.Turns = map[string]string{"a": repeat("a", 100<<10)}, nil
	f.decide()
	f.Expect(len(f.turns())).To(BeNumerically(">", 30), "it goes on in any case")
}

// isKeptWhole fails unless the caches keep the StackRollout whole: who has a turn would not be woken.
func (f *fleet) isKeptWhole() {
	event, err := json.Marshal(map[string]any{"type": "MODIFIED", "object": f.rollout})
	f.Expect(err).NotTo(HaveOccurred())
	wire := informercache.NewTransport(roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(event))}, nil
	}))
	request, err := http.NewRequest(http.MethodGet, "https://api.example.com/apis?watch=true", http.NoBody)
	f.Expect(err).NotTo(HaveOccurred())
	response, err := wire.RoundTrip(request)
	f.Expect(err).NotTo(HaveOccurred())
	defer response.Body.Close()
	f.Expect(io.ReadAll(response.Body)).To(MatchJSON(event))
	f.Expect(informercache.IsShortened(informercache.Shortened(f.rollout.DeepCopy()))).To(BeFalse())
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// Most Stacks are created while the first ones are being updated.
func TestLimitHoldsWhileAFleetIsCreated(t *testing.T) {
	f := newFleet(t)
	f.rollout.Spec.Waves = []autov1alpha1.RolloutWave{f.rollout.Spec.Waves[0], {Name: "early", Limit: number(1)}, {Name: "rest"}}
	f.stacks = f.stacks[:4]
	f.offers("b")
	for i := range 50 {
		f.add(fmt.Sprintf("new-%d", i), false)
		f.decide()
		f.Expect(f.rollout.Status.Waves[1].Stacks).To(BeEquivalentTo(1))
	}
	for _, stack := range f.turns() {
		succeed(stack, "b")
	}
	f.decide()
	f.Expect(f.turns()).To(HaveLen(1), "the wave of one Stack")
	began := f.turns()[0]
	for i := range 50 {
		f.add(fmt.Sprintf("newer-%d", i), false)
	}
	f.decide()
	f.Expect(f.turns()).To(ContainElement(began))
	f.Expect(f.rollout.Status.Turns).To(HaveEach(HaveField("Wave", "early")))
	f.unknownNamespace = errors.New("the controller may not list Namespaces")
	order, all := f.rollout.Status.Waves[1].Order, f.stacks
	f.stacks = f.stacks[:10]
	f.decide()
	f.Expect(f.last.reason).To(Equal(pulumiv1.SpecInvalidReason))
	f.unknownNamespace, f.stacks = nil, all
	f.decide()
	f.Expect(f.rollout.Status.Waves[1].Order).To(Equal(order), "not chosen anew from those that were known")
}

// A decision on 10,000 Stacks, of which some are being updated.
func BenchmarkDecide(b *testing.B) {
	f := &fleet{WithT: NewWithT(b), now: noon, rollout: &autov1alpha1.StackRollout{Namespace: "platform", Name: "all"}}
	f.rollout.Spec.AllowedNamespaces = &autov1alpha1.AllowedNamespaces{From: autov1alpha1.FromAll}
	f.rollout.Spec.MaxConcurrent = number(200)
	f.rollout.Spec.Waves = []autov1alpha1.RolloutWave{
		{Name: "canary", Stacks: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "canary"}}}, {Name: "early", Limit: percent("50%")}, {Name: "rest"},
	}
	for i := range 10_000 {
		f.add(fmt.Sprintf("stack-%d", i), i < 100)
	}
	f.offers("a")
	for _, stack := range f.stacks[:100] {
		succeed(stack, "b")
	}
	f.offers("b")
	b.ReportAllocs()
	for b.Loop() {
		f.decide()
	}
}

func TestArtifactsThatStacksMayNeedAreKept(t *testing.T) {
	g := NewWithT(t)
	digest := func(letter string) string { return revision(letter).Digest }
	rollout := &autov1alpha1.StackRolloutStatus{Stable: new(revision("a")), Target: &autov1alpha1.RolloutTarget{RolloutRevision: revision("b")},
		Earlier: []autov1alpha1.RolloutRevision{revision("c"), revision("d")}}
	member := func(has string) *waves.Member { return &waves.Member{Has: has} }
	g.Expect(neededBy(&autov1alpha1.StackRolloutStatus{}, nil)).To(BeEmpty())
	g.Expect(neededBy(rollout, nil)).To(Equal([]string{digest("b"), digest("a")}))
	g.Expect(neededBy(rollout, []*waves.Member{
		member(digest("a")), member(digest("d")), member("5287e5dc5287e5dc5287e5dc5287e5dc5287e5dc"), member(digest("e")), member(digest("d")), member(""),
	})).To(Equal([]string{digest("b"), digest("a"), digest("d"), digest("e")}), "e is of a source of its own")
}

// With more digests than are kept, what Stacks ran that wait goes first, and each decision keeps the same.
func TestArtifactsOfStacksThatWaitAreKeptFirst(t *testing.T) {
	g := NewWithT(t)
	rollout := &autov1alpha1.StackRolloutStatus{Stable: new(revision("a")), Target: &autov1alpha1.RolloutTarget{RolloutRevision: revision("b")}}
	var members []*waves.Member
	var waiting []string
	for i := range 100 {
		m := &waves.Member{Has: fmt.Sprintf("sha256:%064x", i), HasTarget: i < 70}
		if members = append(members, m); !m.HasTarget {
			waiting = append(waiting, m.Has)
		}
	}
	kept := neededBy(rollout, members)
	g.Expect(kept).To(HaveLen(maxKept))
	g.Expect(kept).To(ContainElements(revision("b").Digest, revision("a").Digest))
	g.Expect(kept).To(ContainElements(waiting))
	for range 10 {
		rand.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		g.Expect(neededBy(rollout, members)).To(Equal(kept))
	}
}

func TestLimitedWaveKeepsItsStacksWhenOthersCome(t *testing.T) {
	f := newFleet(t)
	f.rollout.Spec.Waves[0] = autov1alpha1.RolloutWave{Name: "some", Limit: percent("25%")}
	f.offers("b")
	some := f.turns()
	f.Expect(some).To(HaveLen(2))
	for i := range 20 {
		f.add(fmt.Sprintf("new%d", i), false)
	}
	f.decide()
	for _, stack := range some {
		f.Expect(f.turns()).To(ContainElement(stack), "Stacks that come move no other one")
	}
	other := 0
	for _, letter := range []string{"c", "d", "e", "f"} {
		f.offers(letter)
		for _, stack := range f.turns() {
			if stack != some[0] && stack != some[1] {
				other++
			}
		}
	}
	f.Expect(other).To(BeNumerically(">", 0), "the order is another one for each revision")
}
