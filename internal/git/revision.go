package git

import (
	"context"
	"slices"
	"strings"
)

// minAbbreviation is the fewest digits that stand for a commit.
const minAbbreviation = 7

const (
	branchPrefix = "refs/heads/"
	tagPrefix    = "refs/tags/"
)

// Revision is a commit and the name it was found by.
type Revision struct {
	// SHA is the full object name of the commit, in lower-case hexadecimal digits.
	SHA string

	// Ref is the full name of the reference that matched, such as refs/heads/main, or "" when a SHA was asked for.
	Ref string
}

// String is the revision as Flux writes it: main@sha1:… for a branch, v1@sha1:… for a tag, the full name for any other
// reference (refs/pull/1/head@sha1:…), and sha1:… for a bare SHA. SHA-256 repositories have sha256 instead.
func (r Revision) String() string {
	algorithm := "sha1:"
	if len(r.SHA) == sha256Length {
		algorithm = "sha256:"
	}
	name := r.Ref
	for _, prefix := range []string{branchPrefix, tagPrefix} {
		if short, found := strings.CutPrefix(name, prefix); found {
			name = short
			break
		}
	}
	if name == "" {
		return algorithm + r.SHA
	}
	return name + "@" + algorithm + r.SHA
}

// Resolve finds the commit that the ref names in the remote repository.
//
// The ref is "" or HEAD (the default branch), a full name (refs/pull/1/head), a name without refs/ (heads/main, tags/v1), the
// short name of a branch or a tag, or a SHA, full or of at least seven digits. Of a branch and a tag of one short name the
// branch counts, as for git clone --branch; and both count before a SHA that is abbreviated to the same text. An annotated tag
// gives its commit.
//
// A full SHA is returned as it is, without a request. An abbreviated one is looked for among the tips first; if it is none,
// the history is downloaded, which takes as long and as much as a checkout at most. Callers should keep the answer.
//
// Errors are of type *Error.
func (c *Client) Resolve(ctx context.Context, remote Remote, ref string) (Revision, error) {
	r, err := c.open(remote)
	if err != nil {
		return Revision{}, err
	}
	if sha := strings.ToLower(ref); isObjectName(sha) {
		return Revision{SHA: sha}, nil
	}
	if len(ref) > maxRefLength || !validRefName("refs/"+ref) && ref != "" {
		return Revision{}, r.fail(RevisionNotFound, "%q cannot be the name of a branch, a tag or a commit", shorten(ref, maxShown))
	}
	list, err := c.list(ctx, r)
	if err != nil {
		return Revision{}, err
	}
	if revision, found := list.match(ref); found {
		return revision, nil
	}
	abbreviated := strings.ToLower(ref)
	if len(abbreviated) >= minAbbreviation && len(abbreviated) < sha1Length && isHex(abbreviated) {
		return c.expand(ctx, r, list, abbreviated)
	}
	if len(list.refs) == 0 {
		return Revision{}, r.fail(RevisionNotFound, "the repository is empty")
	}
	if ref == "" || ref == headRef {
		return Revision{}, r.fail(RevisionNotFound, "the repository has no default branch: name a branch, a tag or a commit")
	}
	return Revision{}, r.fail(RevisionNotFound, "no branch, tag or other reference %q", shorten(ref, maxShown))
}

// list asks the server for its refs.
func (c *Client) list(ctx context.Context, r *repository) (*advertisement, error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	session, err := r.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer session.close()
	list, err := r.advertised(ctx, session)
	if err != nil {
		return nil, err
	}
	return list, nil
}

// match finds the ref by the rules of Resolve, except for SHAs.
func (a *advertisement) match(ref string) (Revision, bool) {
	if ref == "" || ref == headRef {
		head, found := a.find(headRef)
		if !found {
			return Revision{}, false
		}
		name := a.head
		if name == "" {
			name = headRef
		}
		return Revision{SHA: head.target(), Ref: name}, true
	}
	for _, name := range candidates(ref) {
		if found, ok := a.find(name); ok {
			return Revision{SHA: found.target(), Ref: found.name}, true
		}
	}
	return Revision{}, false
}

// candidates are the full names that a ref can stand for, in the order in which they count.
func candidates(ref string) []string {
	switch {
	case strings.HasPrefix(ref, "refs/"):
		return []string{ref}
	case strings.HasPrefix(ref, "heads/"), strings.HasPrefix(ref, "tags/"):
		return []string{"refs/" + ref, branchPrefix + ref, tagPrefix + ref}
	default:
		return []string{branchPrefix + ref, tagPrefix + ref, "refs/" + ref}
	}
}

// tips are the distinct objects of HEAD, branches and tags.
func (a *advertisement) tips() []string {
	var tips []string
	for _, ref := range a.refs {
		if ref.name == headRef || strings.HasPrefix(ref.name, branchPrefix) || strings.HasPrefix(ref.name, tagPrefix) {
			tips = append(tips, ref.object)
		}
	}
	slices.Sort(tips)
	return slices.Compact(tips)
}

// withPrefix are the distinct commits of all refs that start with the digits.
func (a *advertisement) withPrefix(digits string) []string {
	var found []string
	for _, ref := range a.refs {
		if target := ref.target(); strings.HasPrefix(target, digits) {
			found = append(found, target)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// expand finds the commit that starts with the digits.
func (c *Client) expand(ctx context.Context, r *repository, list *advertisement, digits string) (Revision, error) {
	found := list.withPrefix(digits)
	if len(found) == 0 && len(list.refs) > 0 {
		var err error
		if found, err = c.searchHistory(ctx, r, digits); err != nil {
			return Revision{}, err
		}
	}
	switch len(found) {
	case 0:
		return Revision{}, r.fail(RevisionNotFound, "no branch, tag or commit %q", digits)
	case 1:
		return Revision{SHA: found[0]}, nil
	default:
		return Revision{}, r.fail(RevisionNotFound, "more than one commit starts with %q: give more digits", digits)
	}
}
