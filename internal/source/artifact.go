// Package source finds the artifact that a Stack names. Whatever its kind, a source ends as one thing: a revision, a
// digest, and a place to fetch a tarball from.
package source

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/artifact"
)

// originRevisionAnnotation is the artifact metadata key under which an OCI artifact tells the commit it was made from.
const originRevisionAnnotation = "org.opencontainers.image.revision"

// Artifact is what a source offers now.
type Artifact struct {
	artifact.Reference
	// OriginRevision is the revision that an OCI artifact was built from; empty for other sources.
	OriginRevision string
	// Published is when the source last changed, to the second.
	Published time.Time
	// Git is the commit that the artifact is made of, with its full hash as Ref; nil for other sources. The digest is empty until
	// it was made.
	Git *autov1alpha1.GitSource
	// Program names the Program that the artifact is made of; nil for other sources.
	Program *autov1alpha1.ProgramSource
	// CommitInfo describes the commit as far as it is known; nil when nothing is.
	CommitInfo *autov1alpha1.CommitInfo
}

// Commit is what a Stack's status records as its commit: the hash of a git commit, and the digest for all other sources.
func (a *Artifact) Commit() string {
	if a.Git != nil {
		return a.Git.Ref
	}
	return a.Digest
}

// artifactOf reads status.artifact, which has one shape in every Flux source kind.
// It returns nil when the source has no artifact.
func artifactOf(object *unstructured.Unstructured) (*Artifact, error) {
	content, found, err := unstructured.NestedMap(object.Object, "status", "artifact")
	if err != nil {
		return nil, fmt.Errorf("read status.artifact of %s: %w", describe(object), err)
	}
	if !found {
		return nil, nil
	}
	var published meta.Artifact
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, &published); err != nil {
		return nil, fmt.Errorf("read status.artifact of %s: %w", describe(object), err)
	}
	if published.URL == "" || published.Digest == "" {
		return nil, nil
	}
	return &Artifact{
		Reference: artifact.Reference{
			URL:      published.URL,
			Digest:   published.Digest,
			Revision: published.Revision,
			Size:     published.Size,
		},
		OriginRevision: published.Metadata[originRevisionAnnotation],
		Published:      published.LastUpdateTime.Time,
		CommitInfo:     fluxCommitInfo(object, published.Revision, published.Metadata),
	}, nil
}

func describe(object *unstructured.Unstructured) string {
	return fmt.Sprintf("%s %s/%s", object.GetKind(), object.GetNamespace(), object.GetName())
}

// Changed tells whether a source offers something else than before, or has nothing to offer for another reason.
func Changed(before, after *unstructured.Unstructured) bool {
	oldArtifact, oldErr := artifactOf(before)
	newArtifact, newErr := artifactOf(after)
	if oldErr != nil || newErr != nil || (oldArtifact == nil) != (newArtifact == nil) {
		return true
	}
	if newArtifact == nil {
		oldStatus, oldMessage := readyCondition(before)
		newStatus, newMessage := readyCondition(after)
		return oldStatus != newStatus || oldMessage != newMessage
	}
	return oldArtifact.Revision != newArtifact.Revision || oldArtifact.Digest != newArtifact.Digest || oldArtifact.URL != newArtifact.URL
}
