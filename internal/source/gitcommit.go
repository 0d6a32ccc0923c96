package source

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
	"github.com/stack-controller/stack-controller/internal/source/git"
)

// gitCommit makes the artifact of one commit. It holds no credentials: Make reads them.
type gitCommit struct {
	git *Git
	// namespace is the namespace for which the artifact is made.
	namespace string
	repo      gitRepository
	sha       string
}

// Key identifies the commit, the namespace, and the rights with which the repository is read. Namespaces do not share checkouts, because
// one would wait in the queue of another. The key does not depend on the values of credentials, so that renewed credentials do not cause
// another checkout of a stored commit.
func (c *gitCommit) Key() string {
	repo := c.repo
	repo.namespace = c.namespace
	key := repo.key("commit", c.sha)
	return "git:" + hex.EncodeToString(key[:])
}

// Make checks out the commit and packs it. Its errors have a *Problem in their chain, except when ctx was cancelled.
func (c *gitCommit) Make(ctx context.Context, to io.Writer) error {
	err := c.pack(ctx, to)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return context.Cause(ctx)
	}
	failure := gitFailureOf(err, c.repo)
	failure.diskFull = failure.diskFull && c.git.options.sharesDisk()
	c.git.options.Log.V(1).Info("cannot make the artifact of a commit",
		"repository", c.repo.shown(), "commit", c.sha, "problem", failure.Error(), "detail", failure.detail)
	return artifact.NewMakeError(failure.kind, failure)
}

// sharesDisk reports whether packfiles are on the disk of the store of artifacts.
func (o GitOptions) sharesDisk() bool {
	var packs, store unix.Stat_t
	return unix.Stat(cmp.Or(o.Dir, os.TempDir()), &packs) == nil && unix.Stat(o.StoreDir, &store) == nil && packs.Dev == store.Dev
}

func (c *gitCommit) pack(ctx context.Context, to io.Writer) error {
	remote, err := readRemote(ctx, c.git.options.APIReader, c.repo)
	if err != nil {
		return err
	}
	if failure := c.git.pauses.ofCheckout(remote, c.repo); failure != nil {
		return failure
	}
	remote.Namespace = c.namespace
	commit, err := c.git.client.Archive(ctx, remote, c.sha, to)
	failure := gitFailureOf(err, c.repo)
	c.git.pauses.record(remote, failure, err)
	if failure != nil && failure.newToken {
		if failure := c.git.pauses.ofCheckout(remote, c.repo); failure != nil {
			return failure
		}
	}
	if len(commit.LeftOut) > 0 {
		c.git.options.Log.Info("symbolic links of a commit are left out, because they lead to no file of the commit",
			"repository", c.repo.shown(), "commit", c.sha, "links", commit.LeftOut)
	}
	if err == nil {
		c.git.keepDescription(c.repo, c.sha, commit)
	}
	return err
}

// keepDescription keeps the description of a commit that was checked out, for objects with the same rights in the repository.
func (g *Git) keepDescription(repo gitRepository, sha string, commit git.Commit) {
	g.descriptions.Add(repo.key("commit", sha), &autov1alpha1.CommitInfo{
		SHA:         sha,
		Author:      commit.Author,
		AuthorEmail: commit.AuthorEmail,
		Message:     commit.Message,
		Repository:  repo.shown(),
	})
}

// describe returns what is known about the revision from checkouts with the same rights in the repository.
func (g *Git) describe(repo gitRepository, revision git.Revision) *autov1alpha1.CommitInfo {
	info := &autov1alpha1.CommitInfo{SHA: revision.SHA, Repository: repo.shown()}
	if known, ok := g.descriptions.Get(repo.key("commit", revision.SHA)); ok {
		info = known.(*autov1alpha1.CommitInfo).DeepCopy()
	}
	info.Ref = revision.Ref
	return info
}

// checkSecrets reads the Secrets of a repository, and fails with a *Problem when one is missing.
func (g *Git) checkSecrets(ctx context.Context, repo gitRepository) error {
	_, err := readRemote(ctx, g.options.APIReader, repo)
	if failure := gitFailureOf(err, repo); failure != nil && failure.class != transientFailure {
		return &failure.Problem
	}
	if err != nil {
		return fmt.Errorf("read the credentials for %s: %w", repo.shown(), err)
	}
	return nil
}
