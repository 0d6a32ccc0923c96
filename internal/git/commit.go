package git

import (
	"fmt"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
)

const (
	// maxCommitSize bounds commits and tags in bytes.
	maxCommitSize = 1 << 20

	// maxTagDepth bounds how many tags may be between a tag and its commit.
	maxTagDepth = 5

	// maxSubject and maxAuthor bound what is told of a commit, in bytes.
	maxSubject = 250
	maxAuthor  = 100
)

// Commit describes a commit for people.
type Commit struct {
	// SHA is its full object name.
	SHA string

	// Author and AuthorEmail say who wrote the change, Message its first line. They are valid UTF-8 without control
	// characters and bounded (100 and 250 bytes).
	Author, AuthorEmail, Message string

	// When is when it was committed.
	When time.Time
}

// readCommit gives the commit and the hash of its tree. The name of a tag stands for the commit that it tags.
func (p *pack) readCommit(hash plumbing.Hash) (Commit, plumbing.Hash, error) {
	for range maxTagDepth {
		n, found := p.find(hash)
		if !found {
			break
		}
		kind := p.objects[n].kind
		if kind != plumbing.TagObject && kind != plumbing.CommitObject {
			return Commit{}, plumbing.ZeroHash, fmt.Errorf("%w: %s is a %s and not a commit", errNotCommit, hash, kind)
		}
		content, err := p.get(hash, kind, maxCommitSize)
		if err != nil {
			return Commit{}, plumbing.ZeroHash, err
		}
		encoded := &plumbing.MemoryObject{}
		encoded.SetType(kind)
		if _, err := encoded.Write(content); err != nil {
			return Commit{}, plumbing.ZeroHash, err
		}
		if kind == plumbing.TagObject {
			tag := &object.Tag{}
			if err := tag.Decode(encoded); err != nil {
				return Commit{}, plumbing.ZeroHash, fmt.Errorf("%w: tag %s cannot be read", errNotCommit, hash)
			}
			hash = tag.Target
			continue
		}
		return decodeCommit(encoded)
	}
	return Commit{}, plumbing.ZeroHash, fmt.Errorf("%w: %s", errNoObject, hash)
}

func decodeCommit(encoded plumbing.EncodedObject) (Commit, plumbing.Hash, error) {
	decoded := &object.Commit{}
	if err := decoded.Decode(encoded); err != nil {
		return Commit{}, plumbing.ZeroHash, fmt.Errorf("%w: commit %s cannot be read", errNotCommit, encoded.Hash())
	}
	return Commit{
		SHA:         encoded.Hash().String(),
		Author:      shorten(plain(decoded.Author.Name), maxAuthor),
		AuthorEmail: shorten(plain(decoded.Author.Email), maxAuthor),
		Message:     firstLine(decoded.Message),
		When:        decoded.Committer.When,
	}, decoded.TreeHash, nil
}

// firstLine is the first line of a commit's message that has something in it.
func firstLine(message string) string {
	line, _, _ := strings.Cut(strings.TrimLeft(message, " \t\r\n"), "\n")
	return shorten(plain(line), maxSubject)
}
