package update

import (
	"encoding/json"
	"flag"
	"os"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// wakersFile has what brings an Update back, for each reason that it waits for. The page docs/conditions.md is made from it.
const wakersFile = "../../report/reasons/wakers/update.json"

var updateWakers = flag.Bool("update-wakers", false, "write "+wakersFile)

// wakers are the wakers of each reason.
type wakers map[string][]waker

func (w wakers) add(d decision) {
	if d.action != actionWait && d.action != actionDeliver {
		return
	}
	all := []waker{d.wake}
	if d.after > 0 {
		all = append(all, byTime)
	}
	for _, one := range all {
		if !slices.Contains(w[d.reason], one) {
			w[d.reason] = append(w[d.reason], one)
			slices.Sort(w[d.reason])
		}
	}
}

// findWakers makes every decision to wait, and returns the wakers of each reason.
func findWakers() wakers {
	found, objects := wakers{}, newModelObjects()
	modelSpaces(func(s *modelState) { found.add(decide(objects.observe(s))) })
	o := objects.observe(&modelState{life: "new", deletion: "kept", workspace: "ready", agent: "knows nothing", artifact: "ready", request: "complete"})
	for _, reason := range []string{
		pulumiv1.AuthenticationFailedReason, pulumiv1.HostKeyUnknownReason, pulumiv1.LFSPointersReason, pulumiv1.RateLimitedReason,
		pulumiv1.RepositoryNotFoundReason, pulumiv1.RevisionNotFoundReason, pulumiv1.SecretNotFoundReason, pulumiv1.SourceNotFoundReason,
		pulumiv1.SourceNotReadyReason, pulumiv1.SourceNotVerifiedReason, pulumiv1.SourceUnavailableReason, pulumiv1.AccessDeniedReason,
		pulumiv1.ArtifactNotFoundReason, pulumiv1.SourceKindNotInstalledReason,
	} {
		found.add(decide(with(o, sourceFails(&source.Problem{Reason: reason, Watched: true}))))
	}
	for _, err := range []error{
		client.ErrBusy, client.ErrDigestMismatch, client.ErrTooLarge, client.ErrInvalid, client.ErrPulumiUnsupported, client.ErrUnavailable,
	} {
		found.add(decide(with(o, deliveryFails(err))))
		found.add(decide(with(o, startFails(err))))
	}
	found.add(decide(with(o, startFails(client.ErrSourceMissing))))
	return found
}

// TestWakersOfEachReasonAreWrittenDown checks that the file has what brings an Update back for each reason, and nothing else.
func TestWakersOfEachReasonAreWrittenDown(t *testing.T) {
	suite.WithoutRaceDetector(t)
	g := NewWithT(t)
	content, err := json.MarshalIndent(findWakers(), "", "  ")
	g.Expect(err).NotTo(HaveOccurred())
	if *updateWakers {
		g.Expect(os.WriteFile(wakersFile, append(content, '\n'), 0o644)).To(Succeed())
	}
	written, err := os.ReadFile(wakersFile)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(written)).To(Equal(string(content)+"\n"), "run make generate, then mend internal/report/reasons")
}
