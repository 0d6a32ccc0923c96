package source

import (
	"context"
	"errors"
	"fmt"
	"time"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/artifact"
	"github.com/stack-controller/stack-controller/internal/git"
)

// troubleClass says how a look at a repository that failed is gone about.
type troubleClass int

const (
	// transientTrouble may be over at the next look: nobody has to do anything.
	transientTrouble troubleClass = iota
	// absentTrouble is something that the server does not have, and that may be pushed or created any time.
	absentTrouble
	// credentialTrouble is something that somebody has to mend where credentials and known hosts are kept. Servers lock out who
	// tries wrong ones often.
	credentialTrouble
	// referenceTrouble is a Secret or ConfigMap that does not exist yet, or lacks a key.
	referenceTrouble
	// rateTrouble is a server that wants fewer requests.
	rateTrouble
	// finalTrouble only goes away when the object is edited.
	finalTrouble
)

// gitTrouble is why a look at a repository, or a checkout, failed.
type gitTrouble struct {
	problem Problem
	class   troubleClass
	// retryAfter is how long the server asked to be left alone; zero when it did not.
	retryAfter time.Duration
	// kind is that of the error of a checkout.
	kind artifact.Kind
}

// kindTroubles has what follows from the kind of an error, and what its message is followed by.
var kindTroubles = map[git.Kind]struct {
	reason string
	class  troubleClass
	kind   artifact.Kind
	advice string
}{
	git.AuthenticationFailed: {pulumiv1.AuthenticationFailedReason, credentialTrouble, artifact.Unavailable, ""}, // see credentialAdvice
	git.InvalidCredentials:   {pulumiv1.AuthenticationFailedReason, credentialTrouble, artifact.Unavailable, ""},
	git.HostKeyUnknown: {pulumiv1.HostKeyUnknownReason, credentialTrouble, artifact.Unavailable,
		"add the key of the server to the known hosts: with gitAuth.knownHostsRef, or as known_hosts in the Secret of the private key"},
	git.CertificateInvalid: {pulumiv1.SourceUnavailableReason, credentialTrouble, artifact.Unavailable,
		"name a Secret with the certificate authority as ca.crt in gitAuth.certSecretRef"},
	git.RepositoryNotFound: {pulumiv1.RepositoryNotFoundReason, absentTrouble, artifact.Unavailable,
		"check the URL, and whether the credentials may read the repository"},
	git.RevisionNotFound: {pulumiv1.RevisionNotFoundReason, absentTrouble, artifact.NotFound,
		"push it, or name another branch, tag or commit"},
	git.RateLimited: {pulumiv1.RateLimitedReason, rateTrouble, artifact.Unavailable,
		"the server is left alone for the time it asks for; credentials, or a longer resync interval, raise the limit"},
	git.LFSPointers: {pulumiv1.LFSPointersReason, absentTrouble, artifact.Unavailable,
		"use a Flux GitRepository or an OCIRepository, or keep these files out of Git LFS"},
	git.TooLarge: {pulumiv1.ArtifactTooLargeReason, absentTrouble, artifact.TooLarge,
		"keep what the program does not need out of the repository, or raise the controller's limits"},
	git.InvalidURL: {pulumiv1.SpecInvalidReason, finalTrouble, artifact.Unusable, "correct the URL of the repository"},
}

// troubleOf finds out what an error of a look or a checkout means for the object. A nil error is no trouble.
func troubleOf(err error, repo gitRepository) *gitTrouble {
	if err == nil {
		return nil
	}
	var trouble *gitTrouble
	if errors.As(err, &trouble) {
		return trouble
	}
	var gitError *git.Error
	switch {
	case errors.As(err, &gitError):
		return kindTrouble(gitError, repo)
	case errors.Is(err, context.DeadlineExceeded):
		return unavailable("%s does not answer in time", repo.shown())
	}
	// The text of an error that nobody vouches for may contain anything.
	return unavailable("%s cannot be read; the log of the controller may tell more", repo.shown())
}

func kindTrouble(err *git.Error, repo gitRepository) *gitTrouble {
	known, ok := kindTroubles[err.Kind]
	if !ok {
		return unavailable("%s", err.Message)
	}
	advice := known.advice
	if advice == "" {
		advice = credentialAdvice(repo.auth)
	}
	return &gitTrouble{
		problem: Problem{
			Reason:    known.reason,
			Message:   fmt.Sprintf("%s: %s", err.Message, advice),
			Permanent: known.class == finalTrouble,
			Watched:   true,
		},
		class:      known.class,
		retryAfter: err.RetryAfter,
		kind:       known.kind,
	}
}

// credentialAdvice says where the credentials are that were not accepted.
func credentialAdvice(auth *autov1alpha1.GitAuth) string {
	for _, reference := range referencesOf("", auth) {
		if reference.kind == secretKind {
			return fmt.Sprintf("check the credentials in Secret %q and what they may read", reference.name)
		}
	}
	return "set gitAuth"
}

func unavailable(format string, args ...any) *gitTrouble {
	return &gitTrouble{
		problem: Problem{Reason: pulumiv1.SourceUnavailableReason, Message: fmt.Sprintf(format, args...), Watched: true},
		class:   transientTrouble,
		kind:    artifact.Unavailable,
	}
}

func missingReference(format string, args ...any) *gitTrouble {
	return &gitTrouble{
		problem: Problem{Reason: pulumiv1.SecretNotFoundReason, Message: fmt.Sprintf(format, args...), Watched: true},
		class:   referenceTrouble,
		kind:    artifact.Unavailable,
	}
}

// Error implements error.
func (t *gitTrouble) Error() string { return t.problem.Message }

// Unwrap returns the *Problem.
func (t *gitTrouble) Unwrap() error { return t.shown() }

// shown returns the problem for somebody who may keep it.
func (t *gitTrouble) shown() *Problem {
	problem := t.problem
	return &problem
}
