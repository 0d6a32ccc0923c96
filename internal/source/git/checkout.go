package git

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/klauspost/compress/gzip"

	"github.com/stack-controller/stack-controller/internal/plaintext"
)

const (
	// maxCommitSize bounds commits and tags in bytes.
	maxCommitSize = 1 << 20

	// maxTagDepth bounds how many tags may be between a tag and its commit.
	maxTagDepth = 5

	// maxSubject and maxAuthor bound in bytes what is shown of a commit.
	maxSubject = 250
	maxAuthor  = 100
)

var errNotCommit = &knownError{RevisionNotFound, "not a commit"}

// Commit describes a commit for people.
type Commit struct {
	// SHA is its full object name.
	SHA string

	// Author and AuthorEmail say who wrote the change, Message its first line. They are valid UTF-8 without control
	// characters and bounded (100 and 250 bytes).
	Author, AuthorEmail, Message string

	// When is when it was committed.
	When time.Time

	// LeftOut names the first 10 symbolic links that are not in the tarball, quoted; the last name is "…" if there are more.
	LeftOut []string
}

// checkout is one commit on disk, with its submodules: the packfiles that the server sent, and in memory the names of the files. There is
// no work tree, so no name in the commit is ever used on this machine's file system.
type checkout struct {
	client *Client
	claim  *claim
	files  map[string]packFile // by the path of their part
	commit Commit
	// remaining is how many bytes may still be downloaded.
	remaining int64

	// These fields belong to the last pass of build. missing are the submodules that were not downloaded yet; modules counts all.
	packs   []*pack
	listing listing
	missing []*part
	modules int
}

// Archive fetches the commit, given by its full SHA, checks it against the limits, and writes its work tree as a gzip-compressed tarball
// that the archive package accepts. The tarball has regular files and directories, sorted by name, without git's own directory. A
// symbolic link that leads to a regular file of the work tree becomes a copy of this file; the other ones are left out. Their owners and times are zero, and their modes 0644 or 0755. Submodules are empty directories unless RecurseSubmodules
// is set. Servers that allow it send only the commit; others send the history.
//
// The same tree gives the same bytes, on every machine and with every version of Go, so the digest of the tarball identifies the content.
// The digest changes only with the version of the compressor in go.mod; a test checks a known digest.
//
// The download and the writing take at most the client's CheckoutTimeout each, including the time that they wait for the memory that all
// checkouts share.
//
// Errors are of type *Error, except for errors while the tarball is written or packfiles are closed, and for that of a context that the
// caller has cancelled. A SHA that the repository does not have, for example because of a forced push, is RevisionNotFound.
func (c *Client) Archive(ctx context.Context, remote Remote, sha string, w io.Writer) (commit Commit, err error) {
	r, err := c.open(remote)
	if err != nil {
		return Commit{}, err
	}
	sha = strings.ToLower(sha)
	switch {
	case len(sha) == sha256Length && isHex(sha):
		return Commit{}, r.fail(Other, "commit %s: a repository with the hash function SHA-256 is not supported, only SHA-1", sha)
	case !isObjectName(sha):
		return Commit{}, r.fail(RevisionNotFound, "%q is not the full SHA of a commit", plaintext.Cut(sha, maxShown))
	}
	b := &checkout{client: c, claim: c.memory.newClaim(remote.Namespace), files: map[string]packFile{}, remaining: c.options.Limits.MaxDownloadSize}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.build(ctx, &part{repository: r, sha: sha}); err != nil {
		return Commit{}, err
	}
	if err := b.pack(ctx, w); err != nil {
		return Commit{}, fmt.Errorf("pack commit %s: %w", sha, err)
	}
	return b.commit, nil
}

// close closes the packfiles, which also removes them, and gives the memory back.
func (b *checkout) close() error {
	var all error
	for _, file := range b.files {
		all = errors.Join(all, file.Close())
	}
	b.claim.release()
	return all
}

// part is the repository of a checkout, or a submodule of it.
type part struct {
	*repository
	sha string
	// path is its place in the checkout, parent the part that it is a submodule of; they are "" and nil for the repository itself.
	path   string
	parent *part
	depth  int
}

func (p *part) attempt() string { return "check out commit " + p.sha }

// build downloads first and then reads, and does both again when it finds submodules, until nothing is missing. So it has nothing in
// memory, and claims no memory, while it waits for a server.
func (b *checkout) build(ctx context.Context, root *part) error {
	ctx, cancel := context.WithTimeout(ctx, b.client.options.CheckoutTimeout)
	defer cancel()
	for b.missing = []*part{root}; len(b.missing) > 0; {
		missing := b.missing
		b.listing, b.missing, b.modules, b.packs = listing{limits: b.client.options.Limits}, nil, 0, nil
		b.claim.release()
		for _, p := range missing {
			if err := b.fetch(ctx, p); err != nil {
				return p.wrap(err)
			}
		}
		if err := b.claim.holdPacks(ctx, b.client.options.Limits.MaxEntries, slices.Collect(maps.Values(b.files))...); err != nil {
			return root.failure(ctx, root.attempt(), err)
		}
		if err := b.read(ctx, root); err != nil {
			return err
		}
	}
	l := &b.listing
	if l.usesLFS && l.pointerCount > 0 {
		if l.pointerCount > len(l.pointers) {
			l.pointers = append(l.pointers, "…")
		}
		return root.fail(LFSPointers, "commit %s has %d pointer(s) to Git LFS instead of content, which is not supported: %s",
			root.sha, l.pointerCount, strings.Join(l.pointers, ", "))
	}
	if err := b.resolveLinks(ctx); err != nil {
		return root.wrap(root.failure(ctx, root.attempt(), err))
	}
	slices.SortFunc(l.entries, func(a, b entry) int { return strings.Compare(a.path, b.path) })
	objects := 0
	for _, p := range b.packs {
		objects += len(p.objects)
	}
	b.claim.shrink(objects, len(l.entries))
	return nil
}

// resolveLinks resolves the links of the listing. It holds working memory for as long as it reads their targets.
func (b *checkout) resolveLinks(ctx context.Context) error {
	release, err := b.claimWork(ctx)
	if err != nil {
		return err
	}
	defer release()
	err = b.listing.resolveLinks(ctx)
	b.commit.LeftOut = b.listing.leftOut
	return err
}

// claimWork waits for the memory that it takes to read objects of any of the packs, one pack at a time.
func (b *checkout) claimWork(ctx context.Context) (release func(), err error) {
	needed := int64(0)
	for _, p := range b.packs {
		needed = max(needed, p.workingMemory())
	}
	return b.client.memory.work(ctx, needed)
}

func (b *checkout) fetch(ctx context.Context, p *part) error {
	p.limits.MaxDownloadSize = b.remaining
	file, err := p.fetch(ctx, p.sha)
	if err != nil {
		return err
	}
	b.files[p.path] = file
	info, err := file.Stat()
	if err != nil {
		return p.fail(Other, "%s: %s", p.attempt(), innermost(err))
	}
	b.remaining -= info.Size()
	return nil
}

// read adds the files of the part and of its submodules, as far as they are downloaded.
func (b *checkout) read(ctx context.Context, p *part) error {
	modules, err := b.readPack(ctx, p)
	if err != nil {
		return p.wrap(p.failure(ctx, p.attempt(), err))
	}
	for _, m := range modules {
		child, err := b.submodule(p, m)
		if err != nil {
			return p.wrap(err)
		}
		if _, found := b.files[child.path]; !found {
			b.missing = append(b.missing, child)
		} else if err := b.read(ctx, child); err != nil {
			return err
		}
	}
	return nil
}

// readPack adds the files of the part, and returns its submodules if the checkout includes them.
func (b *checkout) readPack(ctx context.Context, part *part) ([]module, error) {
	file := b.files[part.path]
	p, err := openPack(ctx, file.File, file.limits, b.client.memory)
	if err != nil {
		return nil, err
	}
	b.packs = append(b.packs, p)
	release, err := p.work(ctx, b.client.memory)
	if err != nil {
		return nil, err
	}
	defer release()
	if _, found := p.find(plumbing.NewHash(part.sha)); !found {
		if file.tips != "" {
			part.remember(part.sha, search{tips: file.tips})
		}
		return nil, part.noSuchCommit(part.sha)
	}
	commit, err := p.readCommit(ctx, plumbing.NewHash(part.sha))
	if err != nil {
		return nil, err
	}
	if part.parent == nil {
		b.commit = Commit{SHA: commit.Hash.String(), Author: plaintext.Cut(plain(commit.Author.Name), maxAuthor),
			AuthorEmail: plaintext.Cut(plain(commit.Author.Email), maxAuthor), Message: firstLine(commit.Message), When: commit.Committer.When}
	}
	modules, err := b.listing.walk(ctx, p, commit.TreeHash, part.path)
	if err != nil || !part.remote.RecurseSubmodules || len(modules) == 0 {
		return nil, err
	}
	return modules, b.listing.readURLs(ctx, p, part.path, modules)
}

// readCommit returns the commit. If the hash is that of an annotated tag, readCommit returns the commit that the tag leads to.
func (p *pack) readCommit(ctx context.Context, hash plumbing.Hash) (*object.Commit, error) {
	for range maxTagDepth {
		n, found := p.find(hash)
		if !found {
			return nil, fmt.Errorf("%w: %s", errNoObject, hash)
		}
		kind := p.objects[n].kind
		if kind != plumbing.CommitObject && kind != plumbing.TagObject {
			return nil, fmt.Errorf("%w: %s is a %s and not a commit", errNotCommit, hash, kind)
		}
		content, err := p.get(ctx, hash, kind, maxCommitSize)
		if err != nil {
			return nil, err
		}
		encoded := &plumbing.MemoryObject{}
		encoded.SetType(kind)
		if _, err := encoded.Write(content); err != nil {
			return nil, err
		}
		commit, tag := &object.Commit{}, &object.Tag{}
		if kind == plumbing.CommitObject && commit.Decode(encoded) == nil {
			return commit, nil
		}
		if kind == plumbing.CommitObject || tag.Decode(encoded) != nil {
			return nil, fmt.Errorf("%w: %s %s cannot be read", errNotCommit, kind, hash)
		}
		hash = tag.Target
	}
	return nil, fmt.Errorf("%w: a tag of more than %d tags", errNotCommit, maxTagDepth)
}

// firstLine returns the first line of a commit's message that is not empty.
func firstLine(message string) string {
	line, _, _ := strings.Cut(strings.TrimLeft(message, " \t\r\n"), "\n")
	return plaintext.Cut(plain(line), maxSubject)
}

// pack writes the tarball.
func (b *checkout) pack(ctx context.Context, w io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, b.client.options.CheckoutTimeout)
	defer cancel()
	release, err := b.claimWork(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", err, ctx.Err())
	}
	defer release()
	zip, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(zip)
	current := b.packs[0]
	defer func() { current.dropBases() }()
	for _, e := range b.listing.entries {
		if e.pack != nil && e.pack != current {
			current.dropBases()
			current = e.pack
		}
		if err := writeEntry(ctx, archive, e); err != nil {
			return fmt.Errorf("%s: %w", shownPath(e.path), err)
		}
	}
	return errors.Join(archive.Close(), zip.Close())
}

func writeEntry(ctx context.Context, archive *tar.Writer, e entry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	header := &tar.Header{Typeflag: tar.TypeReg, Name: e.path, Mode: 0o644, Size: e.size}
	switch e.mode {
	case filemode.Dir:
		header = &tar.Header{Typeflag: tar.TypeDir, Name: e.path + "/", Mode: 0o755}
	case filemode.Symlink:
		header = &tar.Header{Typeflag: tar.TypeSymlink, Name: e.path, Linkname: "left-out", Mode: 0o644}
	case filemode.Executable:
		header.Mode = 0o755
	}
	if err := archive.WriteHeader(header); err != nil || e.pack == nil {
		return err
	}
	content, err := e.pack.open(ctx, e.object)
	if err != nil {
		return err
	}
	defer content.Close()
	written, err := io.Copy(contextWriter{ctx, archive}, content)
	if err == nil && written != e.size {
		err = errPack
	}
	return err
}

// contextWriter writes until its context ends.
type contextWriter struct {
	ctx context.Context
	io.Writer
}

func (w contextWriter) Write(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	return w.Writer.Write(p)
}
