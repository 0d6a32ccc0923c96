package git

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/go-git/go-git/v5/plumbing"
)

// Checkout is one commit on disk: the packfile that the server sent, and in memory the names of the files. There is no work tree, so no
// name in the commit is ever used on this machine's file system. Close it.
type Checkout struct {
	// Commit is what was checked out.
	Commit Commit

	// SymbolicLinks is how many symbolic links the commit has. They are left out of what Pack writes, because every consumer of an
	// artifact leaves them out.
	SymbolicLinks int

	mutex   sync.Mutex
	dir     string
	packs   []*pack
	entries []entry
}

// Checkout fetches the commit, given by its full SHA, and checks that Pack can write it. Servers that allow it send just that
// commit; otherwise the branch or tag that it is the tip of, without history; otherwise everything that the server shows.
//
// What comes from the server is bounded by the client's CheckoutTimeout and Limits, submodules included, and the hash of every
// object is checked: what Pack writes is what the SHA stands for. At most 64 MiB of content are in memory at a time, or a few times that
// for files that the server sends as differences.
//
// Errors are of type *Error. A SHA that the repository does not have, or no longer after a forced push, is RevisionNotFound.
func (c *Client) Checkout(ctx context.Context, remote Remote, sha string) (*Checkout, error) {
	r, err := c.open(remote)
	if err != nil {
		return nil, err
	}
	sha = strings.ToLower(sha)
	if len(sha) == sha256Length && isHex(sha) {
		return nil, r.fail(Other, "commit %s: a repository with the hash function SHA-256 is not supported, only SHA-1", sha)
	}
	if !isObjectName(sha) {
		return nil, r.fail(RevisionNotFound, "%q is not the full SHA of a commit", shorten(sha, maxShown))
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.CheckoutTimeout)
	defer cancel()
	dir, err := os.MkdirTemp(c.options.Dir, "git-checkout-")
	if err != nil {
		return nil, r.fail(Other, "check out commit %s: no directory on the controller's disk: %s", sha, innermost(err))
	}
	b := &builder{client: c, checkout: &Checkout{dir: dir}, listing: listing{limits: c.options.Limits}, download: c.options.Limits.MaxDownloadSize}
	if err := b.build(ctx, r, sha); err != nil {
		_ = b.checkout.Close()
		return nil, err
	}
	return b.checkout, nil
}

// Close removes the files.
func (c *Checkout) Close() error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	var all error
	for _, p := range c.packs {
		all = errors.Join(all, p.close())
	}
	c.packs, c.entries = nil, nil
	return errors.Join(all, os.RemoveAll(c.dir))
}

// builder makes a checkout of one repository and its submodules.
type builder struct {
	client   *Client
	checkout *Checkout
	listing  listing
	// download is how many bytes may still be downloaded, modules how many submodules there were.
	download int64
	modules  int
}

func (b *builder) build(ctx context.Context, r *repository, sha string) error {
	commit, err := b.add(ctx, r, sha, "", 0)
	if err != nil {
		return err
	}
	if b.listing.usesLFS && b.listing.hasPointers > 0 {
		return r.lfsError(sha, &b.listing)
	}
	slices.SortFunc(b.listing.entries, func(a, b entry) int { return strings.Compare(a.path, b.path) })
	b.checkout.Commit = commit
	b.checkout.entries = b.listing.entries
	b.checkout.SymbolicLinks = b.listing.symbolicLinks
	return nil
}

// add adds one repository, which belongs at the path.
func (b *builder) add(ctx context.Context, r *repository, sha, at string, depth int) (Commit, error) {
	attempt := "check out commit " + sha
	r.limits.MaxDownloadSize = b.download
	p, err := r.fetch(ctx, b.checkout.dir, sha)
	if err != nil {
		return Commit{}, err
	}
	b.checkout.packs = append(b.checkout.packs, p)
	if info, err := p.file.Stat(); err == nil {
		b.download -= info.Size()
	}
	commit, tree, err := p.readCommit(plumbing.NewHash(sha))
	if err != nil {
		return Commit{}, r.contentFailure(ctx, attempt, err)
	}
	modules, err := b.listing.walk(ctx, p, tree, at)
	if err != nil {
		return Commit{}, r.contentFailure(ctx, attempt, err)
	}
	if !r.remote.RecurseSubmodules || len(modules) == 0 {
		return commit, nil
	}
	urls, err := p.readModules(tree)
	if err != nil {
		return Commit{}, r.contentFailure(ctx, attempt, err)
	}
	for _, m := range modules {
		if err := b.submodule(ctx, r, m, urls[strings.TrimPrefix(strings.TrimPrefix(m.path, at), "/")], depth+1); err != nil {
			return Commit{}, err
		}
	}
	return commit, nil
}

// contentFailure makes an Error of what is wrong with the content of a commit.
func (r *repository) contentFailure(ctx context.Context, attempt string, err error) error {
	switch {
	case ctx.Err() != nil:
		return r.failure(ctx, attempt, err)
	case errors.Is(err, errCommitSize), errors.Is(err, errPackTooLarge):
		return r.fail(TooLarge, "%s: %s", attempt, err.Error())
	case errors.Is(err, errNotCommit):
		return r.fail(RevisionNotFound, "%s: %s", attempt, err.Error())
	case errors.Is(err, errModules):
		return r.fail(Submodule, "%s: %s", attempt, err.Error())
	case errors.Is(err, errNoObject), errors.Is(err, errPack):
		return r.fail(Unreachable, "%s: %s", attempt, err.Error())
	default:
		return r.fail(Other, "%s: %s", attempt, err.Error())
	}
}

func (r *repository) lfsError(sha string, l *listing) error {
	more := ""
	if l.hasPointers > len(l.pointers) {
		more = ", …"
	}
	return r.fail(LFSPointers, "commit %s has %d pointer(s) to Git LFS instead of content, which is not supported: %s%s",
		sha, l.hasPointers, strings.Join(l.pointers, ", "), more)
}
