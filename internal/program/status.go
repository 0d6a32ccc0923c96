package program

import (
	"fmt"
	"strconv"
	"time"

	"github.com/opencontainers/go-digest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// eventNewArtifact is the reason of the event about a new artifact, as Flux's sources have it.
const eventNewArtifact = "NewArtifact"

// markReady says that the Program can be run, and how it is packed.
func markReady(program *pulumiv1.Program, packed digest.Digest, size int64, now time.Time) {
	revision := strconv.FormatInt(program.Generation, 10)
	path := fmt.Sprintf("%s/%s/%s", program.Namespace, program.Name, revision)
	artifact := &meta.Artifact{
		Path: path,
		// Nobody serves it: the controller renders the Program when a Stack needs it, and pushes it to the agent.
		URL:            "program://" + path,
		Revision:       revision,
		Digest:         packed.String(),
		LastUpdateTime: metav1.NewTime(now.Truncate(time.Second)),
		Size:           &size,
	}
	if last := program.Status.Artifact; last != nil && last.Revision == revision && last.Digest == artifact.Digest {
		artifact.LastUpdateTime = last.LastUpdateTime
	}
	program.Status.Artifact = artifact
	program.Status.ObservedGeneration = program.Generation
	conditions.Delete(program, meta.ReconcilingCondition)
	conditions.Delete(program, meta.StalledCondition)
	conditions.MarkTrue(program, meta.ReadyCondition, meta.SucceededReason, "the program can be run, revision %s", revision)
}

// markInvalid says what is wrong with the Program. It has no artifact then: the one of an earlier generation cannot be made any
// more, so that it would be one in name only.
func markInvalid(program *pulumiv1.Program, invalid *InvalidError) {
	program.Status.Artifact = nil
	program.Status.ObservedGeneration = program.Generation
	conditions.Delete(program, meta.ReconcilingCondition)
	conditions.MarkStalled(program, pulumiv1.ProgramInvalidReason, "%s", invalid.Error())
	conditions.MarkFalse(program, meta.ReadyCondition, pulumiv1.ProgramInvalidReason, "%s", invalid.Error())
}

// announce records an event about a new artifact, and about each edit that leaves or makes the program invalid. It is called with
// the Program as it was, once the status is written.
func (r *Reconciler) announce(before, program *pulumiv1.Program) {
	was, is := before.Status.Artifact, program.Status.Artifact
	switch {
	case is == nil && before.Status.ObservedGeneration != program.Generation:
		r.Event(program, corev1.EventTypeWarning, pulumiv1.ProgramInvalidReason, conditions.GetMessage(program, meta.ReadyCondition))
	case is != nil && (was == nil || was.Revision != is.Revision || was.Digest != is.Digest):
		metadata := map[string]string{
			pulumiv1.GroupVersion.Group + "/" + eventv1.MetaRevisionKey: is.Revision,
			pulumiv1.GroupVersion.Group + "/" + eventv1.MetaDigestKey:   is.Digest,
		}
		r.AnnotatedEventf(program, metadata, corev1.EventTypeNormal, eventNewArtifact, "revision %s, %s", is.Revision, is.Digest)
	}
}
