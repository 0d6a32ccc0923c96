package source

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"runtime/debug"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/artifact"
	"github.com/stack-controller/stack-controller/internal/git"
)

// Bounds of the fields of a CommitInfo, in characters.
const (
	maxAuthor  = 256
	maxMessage = 512
)

// gitMaker makes the artifact of one commit. It holds no credentials: they are read when it is made.
type gitMaker struct {
	git  *Git
	repo gitRepository
	sha  string
}

// Key identifies the commit and with which rights the repository is read. It does not depend on the values of credentials: one
// that is renewed does not lead to another checkout of a commit that is there.
func (m *gitMaker) Key() string {
	key := m.repo.key("commit", m.sha)
	return "git:" + hex.EncodeToString(key[:])
}

// Make checks the commit out and packs it. Its errors have a *Problem in their chain.
func (m *gitMaker) Make(ctx context.Context) (io.ReadCloser, error) {
	remote, err := readRemote(ctx, m.git.options.Live, m.repo)
	if err != nil {
		return nil, m.failure(ctx, err)
	}
	checkout, err := m.git.client.Checkout(ctx, remote, m.sha)
	if err != nil {
		return nil, m.failure(ctx, err)
	}
	m.git.keepDescription(m.repo, m.sha, checkout.Commit)
	return m.pack(ctx, checkout), nil
}

// pack returns what the checkout is packed to, and closes the checkout at the end of it.
func (m *gitMaker) pack(ctx context.Context, checkout *git.Checkout) io.ReadCloser {
	reader, writer := io.Pipe()
	packed := &packedCheckout{PipeReader: reader, ended: make(chan struct{})}
	stop := context.AfterFunc(ctx, func() { _ = reader.CloseWithError(context.Cause(ctx)) })
	go func() {
		defer close(packed.ended)
		defer stop()
		err := m.packInto(writer, checkout)
		if err = errors.Join(err, checkout.Close()); err != nil {
			err = m.failure(ctx, err)
		}
		_ = writer.CloseWithError(err) // which never fails
	}()
	return packed
}

// packInto keeps a panic, which a strange repository may cause, from ending the process.
func (m *gitMaker) packInto(writer io.Writer, checkout *git.Checkout) (err error) {
	defer func() {
		if recover() != nil {
			m.git.options.Log.Error(errPanic, "cannot pack a commit", "repository", m.repo.shown(), "commit", m.sha, "stack", string(debug.Stack()))
			err = errPanic
		}
	}()
	return checkout.Pack(writer)
}

var errPanic = errors.New("an internal error, which the log of the controller has")

// failure gives the error the kind that says what can be done about it.
func (m *gitMaker) failure(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return context.Cause(ctx)
	}
	trouble := troubleOf(err, m.repo)
	m.git.options.Log.V(1).Info("cannot make the artifact of a commit", "repository", m.repo.shown(), "commit", m.sha, "problem", trouble.Error())
	return artifact.NewMakeError(trouble.kind, trouble)
}

// packedCheckout is read to its end, or closed before.
type packedCheckout struct {
	*io.PipeReader
	ended chan struct{}
}

// Close ends the packing, and waits until nothing is left of it on the disk.
func (p *packedCheckout) Close() error {
	err := p.PipeReader.Close()
	<-p.ended
	return err
}

// maker returns the Maker of the commit that the source names.
func (g *Git) maker(repo gitRepository, sha string) *gitMaker {
	return &gitMaker{git: g, repo: repo, sha: sha}
}

// descriptionKey identifies a commit by where people say that it is.
type descriptionKey struct {
	url, sha string
}

// keepDescription remembers what a checkout told about its commit: for those who have the same rights in the repository, and for
// those who know that they may read it.
func (g *Git) keepDescription(repo gitRepository, sha string, commit git.Commit) {
	described := &autov1alpha1.CommitInfo{
		SHA:         sha,
		Author:      shortened(commit.Author, maxAuthor),
		AuthorEmail: shortened(commit.AuthorEmail, maxAuthor),
		Message:     shortened(commit.Message, maxMessage),
		Repository:  repo.shown(),
	}
	g.descriptions.Add(repo.key("commit", sha), described)
	g.descriptions.Add(descriptionKey{repo.shown(), sha}, described)
}

// Describe returns what is known of the commit after it was checked out, nil when nothing is. It is meant for those who have the
// artifact of the commit: it does not ask whether they may read the repository.
func (g *Git) Describe(url, sha string) *autov1alpha1.CommitInfo {
	return g.description(descriptionKey{gitRepository{url: url}.shown(), sha})
}

func (g *Git) description(key any) *autov1alpha1.CommitInfo {
	known, _ := g.descriptions.Get(key)
	described, _ := known.(*autov1alpha1.CommitInfo)
	return described.DeepCopy()
}

// commitInfo describes the revision as far as it is known to those who may read the repository.
func (g *Git) commitInfo(repo gitRepository, revision git.Revision) *autov1alpha1.CommitInfo {
	info := g.description(repo.key("commit", revision.SHA))
	if info == nil {
		info = &autov1alpha1.CommitInfo{SHA: revision.SHA, Repository: repo.shown()}
	}
	info.Ref = revision.Ref
	return info
}

// shortened cuts the text after so many characters.
func shortened(text string, most int) string {
	count := 0
	for i := range text {
		if count++; count > most {
			return text[:i]
		}
	}
	return text
}

// Reference returns the reference to the artifact of a commit: source.Ref is its full hash, and digest, when it is known, is what
// the artifact must have. It reads the Secrets, and fails with a *Problem when one is missing.
func (g *Git) Reference(ctx context.Context, namespace string, source *autov1alpha1.GitSource, digest string) (artifact.Reference, error) {
	if problem := checkGitSource(source); problem != nil {
		return artifact.Reference{}, problem
	}
	if !fullHash.MatchString(source.Ref) {
		return artifact.Reference{}, invalidSource("the commit %q of the git source is not a full hash", source.Ref)
	}
	repo := repositoryOf(namespace, source)
	if _, err := readRemote(ctx, g.options.Live, repo); err != nil {
		if trouble := troubleOf(err, repo); trouble.class != transientTrouble {
			return artifact.Reference{}, trouble.shown()
		}
		return artifact.Reference{}, fmt.Errorf("find the artifact of commit %s: %w", source.Ref, err)
	}
	return artifact.Reference{Maker: g.maker(repo, source.Ref), Digest: digest}, nil
}
