package source

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
	"github.com/stack-controller/stack-controller/internal/source/git"
)

// failureClass decides how soon a poll that failed is repeated.
type failureClass int

const (
	// transientFailure may be over at the next poll, without any action.
	transientFailure failureClass = iota
	// absentFailure is something that the server does not have (yet), and that a user may push or create at any time.
	absentFailure
	// credentialFailure is something that a user has to correct in the Secrets or settings of the repository. Servers may lock out a client
	// that tries wrong credentials often.
	credentialFailure
	// referenceFailure is a Secret or ConfigMap that does not exist yet, or lacks a key.
	referenceFailure
	// rateFailure means that the server asks for fewer requests.
	rateFailure
	// finalFailure only goes away when the object is edited.
	finalFailure
)

// gitFailure is why a poll of a repository, or a checkout, failed. It is an error with its Problem in the chain.
type gitFailure struct {
	Problem
	class failureClass
	// retryAfter is how long the server asked the client to wait; zero if it did not ask.
	retryAfter time.Duration
	// kind is the kind of the error that Make returns.
	kind artifact.Kind
	// detail is for the log only, see git.Error.
	detail string
	// newToken says that the server refused a token that it may not know yet, see git.ErrNewToken.
	newToken bool
	// diskFull says that the disk of the controller is full, and is that of the store: the store makes room then.
	diskFull bool
}

// Unwrap returns the *Problem, and syscall.ENOSPC if the disk is full.
func (f *gitFailure) Unwrap() []error {
	if f.diskFull {
		return []error{&f.Problem, syscall.ENOSPC}
	}
	return []error{&f.Problem}
}

// gitFailures has, for each kind of error, the reason, the class and the kind of the failure, and the advice at the end of its message.
var gitFailures = map[git.Kind]struct {
	reason string
	class  failureClass
	kind   artifact.Kind
	advice string
}{
	git.AuthenticationFailed: {pulumiv1.AuthenticationFailedReason, credentialFailure, artifact.Unavailable, ""}, // see credentialAdvice
	git.InvalidCredentials:   {pulumiv1.AuthenticationFailedReason, credentialFailure, artifact.Unavailable, ""},
	git.HostKeyUnknown: {pulumiv1.HostKeyUnknownReason, credentialFailure, artifact.Unavailable,
		"add the key of the server to the known hosts: with gitAuth.knownHostsRef, or as known_hosts in the Secret of the private key"},
	git.AddressRefused: {pulumiv1.SourceUnavailableReason, credentialFailure, artifact.Unavailable,
		"use the address of another machine, or run the controller with --git-allow-local-addresses"},
	git.CertificateInvalid: {pulumiv1.SourceUnavailableReason, credentialFailure, artifact.Unavailable,
		"name a Secret with the certificate authority as ca.crt in gitAuth.certSecretRef"},
	git.RepositoryNotFound: {pulumiv1.RepositoryNotFoundReason, absentFailure, artifact.Unavailable,
		"check the URL, and whether the credentials may read the repository"},
	git.RevisionNotFound: {pulumiv1.RevisionNotFoundReason, absentFailure, artifact.NotFound,
		"push it, or name another branch, tag or commit"},
	git.RateLimited: {pulumiv1.RateLimitedReason, rateFailure, artifact.Unavailable,
		"the server is left alone for the time it asks for; credentials, or a longer resync interval, raise the limit"},
	git.LFSPointers: {pulumiv1.LFSPointersReason, absentFailure, artifact.Unavailable,
		"use a Flux GitRepository or an OCIRepository, or keep these files out of Git LFS"},
	git.TooLarge: {pulumiv1.ArtifactTooLargeReason, absentFailure, artifact.TooLarge,
		"keep what the program does not need out of the repository, or raise the controller's limits"},
	git.InvalidURL: {pulumiv1.SpecInvalidReason, finalFailure, artifact.Unusable, "correct the URL of the repository"},
}

// gitFailureOf translates an error of a poll or a checkout. It returns nil for a nil error.
func gitFailureOf(err error, repo gitRepository) *gitFailure {
	var known *gitFailure
	var gitError *git.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return known
	case errors.As(err, &gitError):
		return failureOfGit(gitError, repo)
	case errors.Is(err, context.DeadlineExceeded):
		return unavailable("%s does not answer in time", repo.shown())
	}
	// The text of an unknown error may contain secrets, so it is not shown.
	return unavailable("%s cannot be read; the log of the controller may tell more", repo.shown())
}

func failureOfGit(err *git.Error, repo gitRepository) *gitFailure {
	known, ok := gitFailures[err.Kind]
	if !ok {
		failure := unavailable("%s", err.Message)
		failure.retryAfter, failure.detail = err.RetryAfter, err.Detail
		failure.diskFull, failure.newToken = errors.Is(err, syscall.ENOSPC), errors.Is(err, git.ErrNewToken)
		return failure
	}
	advice := known.advice
	if advice == "" {
		advice = credentialAdvice(repo.auth)
	}
	failure := newFailure(known.reason, known.class, "%s: %s", err.Message, advice)
	failure.Permanent = known.class == finalFailure
	failure.retryAfter, failure.kind, failure.detail = err.RetryAfter, known.kind, err.Detail
	return failure
}

// credentialAdvice names the Secret of the credentials that were not accepted.
func credentialAdvice(auth *autov1alpha1.GitAuth) string {
	for _, reference := range referencesOf("", auth) {
		if reference.Kind == references.Secret {
			return fmt.Sprintf("check the credentials in Secret %q and what they may read", reference.Name)
		}
	}
	return "set gitAuth"
}

func unavailable(format string, args ...any) *gitFailure {
	return newFailure(pulumiv1.SourceUnavailableReason, transientFailure, format, args...)
}

func missingReference(format string, args ...any) *gitFailure {
	return newFailure(pulumiv1.SecretNotFoundReason, referenceFailure, format, args...)
}

func newFailure(reason string, class failureClass, format string, args ...any) *gitFailure {
	return &gitFailure{
		Reason: reason, Message: fmt.Sprintf(format, args...), Watched: true,
		class: class,
		kind:  artifact.Unavailable,
	}
}
