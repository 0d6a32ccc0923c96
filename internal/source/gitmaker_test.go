package source

import (
	"errors"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/artifact"
	"github.com/stack-controller/stack-controller/tests/gitserver"
)

func TestCheckoutThatFailsSaysWhy(t *testing.T) {
	s := newGitStage(t)
	kindOf := func(err error) artifact.Kind {
		var failure *artifact.FetchError
		s.Expect(errors.As(err, &failure)).To(BeTrue(), "%v", err)
		return failure.Kind
	}
	query := s.query("a")
	query.Source.Ref = secondSHA
	found, err := s.stacks.Resolve(t.Context(), query)
	s.Expect(err).NotTo(HaveOccurred(), "a commit is not looked for before it is needed")
	failure := s.reading(found)
	s.Expect(kindOf(failure)).To(Equal(artifact.NotFound))
	s.Expect(problemIn(s.WithT, failure).Reason).To(Equal("RevisionNotFound"))

	query.Source.Ref, err = s.repository.Commit(gitserver.Files{
		".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n",
		"big.bin":        "version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("a", 64) + "\nsize 5\n",
	})
	s.Expect(err).NotTo(HaveOccurred())
	found, err = s.stacks.Resolve(t.Context(), query)
	s.Expect(err).NotTo(HaveOccurred())
	failure = s.reading(found)
	s.Expect(problemIn(s.WithT, failure).Reason).To(Equal("LFSPointers"))

	s.git.client = NewGit(GitOptions{Live: s.client, Dir: t.TempDir(), Limits: artifact.Limits{MaxUnpackedSize: 10}}).client
	query.Source.Ref = s.first
	found, err = s.stacks.Resolve(t.Context(), query)
	s.Expect(err).NotTo(HaveOccurred())
	failure = s.reading(found)
	s.Expect(kindOf(failure)).To(Equal(artifact.TooLarge))
}

func TestNothingOfACheckoutStaysOnTheDisk(t *testing.T) {
	s := newGitStage(t)
	dir := t.TempDir()
	s.git.client = NewGit(GitOptions{Live: s.client, Dir: dir}).client
	query := s.query("a")
	query.Source.Ref = s.first
	found, err := s.stacks.Resolve(t.Context(), query)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(s.reading(found)).To(Succeed())
	left, err := os.ReadDir(dir)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(left).To(BeEmpty())

	reader, err := found.Maker.Make(t.Context())
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(reader.Close()).To(Succeed(), "before it is read")
	left, err = os.ReadDir(dir)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(left).To(BeEmpty())
}
