package gitserver

import (
	"fmt"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
)

// Tag pushes a tag of the last commit.
func (r *Repository) Tag(name string) error {
	return r.name(plumbing.NewTagReferenceName(name))
}

// NewBranch pushes another branch that begins, and stays, at the last commit.
func (r *Repository) NewBranch(name string) error {
	return r.name(plumbing.NewBranchReferenceName(name))
}

// name pushes the last commit under the name.
func (r *Repository) name(reference plumbing.ReferenceName) error {
	head, err := r.clone.Head()
	if err != nil {
		return fmt.Errorf("find the last commit: %w", err)
	}
	if err := r.clone.Storer.SetReference(plumbing.NewHashReference(reference, head.Hash())); err != nil {
		return fmt.Errorf("create %s: %w", reference, err)
	}
	err = r.clone.Push(&git.PushOptions{RefSpecs: []config.RefSpec{config.RefSpec(reference + ":" + reference)}})
	if err != nil {
		return fmt.Errorf("push %s to %s: %w", reference, r.URL, err)
	}
	return nil
}
