package source

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/source/artifact"
	"github.com/stack-controller/stack-controller/internal/source/git"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
)

func TestCheckoutThatFailsSaysWhy(t *testing.T) {
	s := newGitFixture(t)
	kindOf := func(err error) artifact.Kind {
		var failure *artifact.FetchError
		s.Expect(errors.As(err, &failure)).To(BeTrue(), "%v", err)
		return failure.Kind
	}
	query := s.query("a")
	query.Source.Ref = secondSHA
	found, err := s.stacks.Subscribe(query)
	s.Expect(err).NotTo(HaveOccurred(), "a commit is not looked for before it is needed")
	failure := s.reading(found)
	s.Expect(kindOf(failure)).To(Equal(artifact.NotFound))
	s.Expect(problemIn(s.WithT, failure).Reason).To(Equal("RevisionNotFound"))

	query.Source.Ref, err = s.repository.Commit(gitserver.Files{
		".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n",
		"big.bin":        "version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("a", 64) + "\nsize 5\n",
	})
	s.Expect(err).NotTo(HaveOccurred())
	found, err = s.stacks.Subscribe(query)
	s.Expect(err).NotTo(HaveOccurred())
	failure = s.reading(found)
	s.Expect(problemIn(s.WithT, failure).Reason).To(Equal("LFSPointers"))

	s.git.client = git.NewClient(git.Options{AllowLocalAddresses: true, Dir: t.TempDir(), Limits: artifact.Limits{MaxUnpackedSize: 10}})
	query.Source.Ref = s.first
	found, err = s.stacks.Subscribe(query)
	s.Expect(err).NotTo(HaveOccurred())
	failure = s.reading(found)
	s.Expect(kindOf(failure)).To(Equal(artifact.TooLarge))
}

func TestLocalAddressIsRefusedUnlessAFlagAllowsIt(t *testing.T) {
	s := newGitFixture(t)
	s.git.client = git.NewClient(git.Options{Dir: t.TempDir()})
	query := s.query("a")
	_, err := s.subscribe(query)
	problem := problemIn(s.WithT, err)
	s.Expect(problem.Reason).To(Equal("SourceUnavailable"))
	s.Expect(problem.Message).To(And(ContainSubstring("loopback, link-local"), ContainSubstring("--git-allow-local-addresses")))
	query.Source.Ref = s.first
	found, err := s.stacks.Subscribe(query)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(problemIn(s.WithT, s.reading(found)).Message).To(ContainSubstring("--git-allow-local-addresses"))
	s.Expect(s.lists.Load()+s.packs.Load()).To(BeZero(), "requests")
}

func TestNothingOfACheckoutStaysOnTheDisk(t *testing.T) {
	s := newGitFixture(t)
	dir := t.TempDir()
	s.git.client = git.NewClient(git.Options{AllowLocalAddresses: true, Dir: dir})
	query := s.query("a")
	query.Source.Ref = s.first
	found, err := s.stacks.Subscribe(query)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(s.reading(found)).To(Succeed())
	left, err := os.ReadDir(dir)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(left).To(BeEmpty())

	s.Expect(found.Maker.Make(t.Context(), brokenDisk{})).NotTo(Succeed())
	left, err = os.ReadDir(dir)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(left).To(BeEmpty())
}

// brokenDisk cannot be written to.
type brokenDisk struct{}

func (brokenDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// fullDisk is a client that has no room for packfiles.
type fullDisk struct{ gitClient }

func (fullDisk) Archive(context.Context, git.Remote, string, io.Writer) (git.Commit, error) {
	failure := unavailable("the disk of the controller is full")
	failure.diskFull = true
	return git.Commit{}, failure
}

func TestStoreIsToldOnlyOfItsOwnFullDisk(t *testing.T) {
	d := newDriver(t, GitOptions{StoreDir: t.TempDir()})
	d.Git.client = fullDisk{d.servers}
	found, err := d.stacks.Subscribe(queryOf("a", branch(firstSHA)))
	d.Expect(err).NotTo(HaveOccurred())
	d.Expect(found.Maker.Make(t.Context(), io.Discard)).To(MatchError(syscall.ENOSPC))
	d.options.StoreDir = "/proc"
	d.Expect(found.Maker.Make(t.Context(), io.Discard)).To(And(MatchError(ContainSubstring("is full")), Not(MatchError(syscall.ENOSPC))))
}
