package git

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/stack-controller/stack-controller/internal/plaintext"
)

const (
	// minAbbreviation is the fewest digits that stand for a commit.
	minAbbreviation = 7

	// maxTips bounds how many different tips a history is requested for, if a server does not send a commit alone.
	maxTips = 10_000

	// maxRefLength bounds the name of a ref in bytes.
	maxRefLength = 1024

	headRef      = "HEAD"
	branchPrefix = "refs/heads/"
	tagPrefix    = "refs/tags/"
	originPrefix = "refs/remotes/origin/"

	sha1Length   = 40
	sha256Length = 64
)

// Revision is a commit and the name it was found by.
type Revision struct {
	// SHA is the full object name of the commit, in lower-case hexadecimal digits.
	SHA string

	// Ref is the full name of the reference that matched, such as refs/heads/main, or "" when a SHA was asked for.
	Ref string
}

// String returns the revision as Flux writes it: main@sha1:… for a branch, v1@sha1:… for a tag, the full name for any other reference
// (refs/pull/1/head@sha1:…), and sha1:… for a bare SHA. SHA-256 repositories have sha256 instead.
func (r Revision) String() string {
	algorithm := "sha1:"
	if len(r.SHA) == sha256Length {
		algorithm = "sha256:"
	}
	name, isBranch := strings.CutPrefix(r.Ref, branchPrefix)
	if !isBranch {
		name = strings.TrimPrefix(r.Ref, tagPrefix)
	}
	if name == "" {
		return algorithm + r.SHA
	}
	return name + "@" + algorithm + r.SHA
}

// Resolve finds the commit that the ref names in the remote repository.
//
// The ref is "" or HEAD (the default branch), a full name (refs/pull/1/head), a name without refs/ (heads/main, tags/v1), the short name of
// a branch or a tag, or a SHA, full or of at least seven digits. If a branch and a tag have the same short name, the branch is used, as
// with git clone --branch. Both take precedence over a SHA that is abbreviated to the same text. An annotated tag resolves to its commit.
//
// A full SHA is returned in lower case, without a request. An abbreviated SHA is looked up among the tips first. If it is not there, the
// history is downloaded, which takes as long and as much as a checkout at most. Callers should keep the answer.
//
// Errors are of type *Error, except for that of a context that the caller has cancelled.
func (c *Client) Resolve(ctx context.Context, remote Remote, ref string) (Revision, error) {
	if sha := strings.ToLower(ref); isObjectName(sha) {
		if _, err := c.open(remote); err != nil {
			return Revision{}, err
		}
		return Revision{SHA: sha}, nil
	}
	return c.resolve(ctx, remote, ref, strings.ToLower(ref))
}

// ResolveName is like Resolve, but the ref is a name and never a SHA, whatever its letters are.
func (c *Client) ResolveName(ctx context.Context, remote Remote, ref string) (Revision, error) {
	return c.resolve(ctx, remote, ref, "")
}

// resolve finds the commit of the name or, if there is none, the one that starts with the digits.
func (c *Client) resolve(ctx context.Context, remote Remote, ref, digits string) (Revision, error) {
	r, err := c.open(remote)
	if err != nil {
		return Revision{}, err
	}
	shown := plaintext.Cut(ref, maxShown)
	if len(ref) > maxRefLength || !validRefName("refs/"+ref) && ref != "" {
		return Revision{}, r.fail(RevisionNotFound, "%q cannot be the name of a branch, a tag or a commit", shown)
	}
	query := refQuery{names: candidates(ref), prefixes: append(candidates(ref), headRef)}
	if len(digits) >= minAbbreviation && len(digits) < sha1Length && isHex(digits) {
		query.digits, query.prefixes = digits, nil
	}
	found, err := c.list(ctx, r, query)
	if err != nil {
		return Revision{}, err
	}
	revision, matches := found.match()
	switch {
	case matches:
		return revision, nil
	case query.digits != "":
		return c.expand(ctx, r, found)
	case ref == "" || ref == headRef:
		return Revision{}, r.fail(RevisionNotFound, "the repository is empty, or has no default branch: name a branch, a tag or a commit")
	case !found.any:
		return Revision{}, r.fail(RevisionNotFound, "no branch, tag or other reference %q: the repository seems to be empty", shown)
	}
	return Revision{}, r.fail(RevisionNotFound, "no branch, tag or other reference %q", shown)
}

// list asks the server for refs.
func (c *Client) list(ctx context.Context, r *repository, query refQuery) (*refs, error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	server, err := r.uploadPack(ctx)
	if err != nil {
		return nil, err
	}
	defer server.close()
	return server.refs(query)
}

// candidates returns the full names that a ref can stand for, in order of precedence.
func candidates(ref string) []string {
	switch {
	case ref == "" || ref == headRef:
		return []string{headRef}
	case strings.HasPrefix(ref, originPrefix):
		// The name of a branch in a clone, which programs that clone take, too.
		return []string{ref, branchPrefix + strings.TrimPrefix(ref, originPrefix)}
	case strings.HasPrefix(ref, "refs/"):
		return []string{ref}
	case strings.HasPrefix(ref, "heads/"), strings.HasPrefix(ref, "tags/"):
		return []string{"refs/" + ref, branchPrefix + ref, tagPrefix + ref}
	default:
		return []string{branchPrefix + ref, tagPrefix + ref, "refs/" + ref}
	}
}

// expand finds the commit that starts with the digits.
func (c *Client) expand(ctx context.Context, r *repository, list *refs) (Revision, error) {
	found, digits := list.commits, list.query.digits
	if len(found) == 0 && list.any {
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

// refQuery says which refs of a repository are asked for. No others are kept, however many the server has.
type refQuery struct {
	// names are full names of refs. prefixes are the prefixes of the refs that a server of version 2 lists; nil for all refs.
	names, prefixes []string
	// digits are the first digits of the SHA of a commit, "" for none.
	digits string
	// sha is an object that a ref is searched for, "" for none.
	sha string
	// tips asks for the objects of HEAD, branches and tags.
	tips bool
}

// encode returns the command ls-refs.
func (q refQuery) encode(c *capabilities) []byte {
	arguments := []string{"peel", "symrefs"}
	for _, prefix := range q.prefixes {
		arguments = append(arguments, "ref-prefix "+prefix)
	}
	return c.command("ls-refs", arguments...)
}

// refs is the result of a query. Its size is bounded by the query, and by maxTips.
type refs struct {
	query refQuery
	// any reports that the server has at least one ref.
	any bool
	// head is the full name of the branch that HEAD points to, "" if the server does not say.
	head string
	// named has the commit of each name that was found.
	named map[string]string
	// commits are the commits that start with the digits, at most two.
	commits []string
	// object is the object of a ref that leads to the sha: the sha itself, or an annotated tag of it.
	object string
	// tips are distinct. When there are more than maxTips, tooMany is set.
	tips    map[plumbing.Hash]struct{}
	tooMany bool
}

// ref is a ref that a server has.
type ref struct {
	name string
	// object is the object that the ref points to. For an annotated tag that is the tag, and peeled is the commit that the tag leads to.
	object, peeled string
	// target is the name of the ref that a symbolic one points to.
	target string
}

// readRefs reads the answer to the command ls-refs of version 2, or the refs of version 0, of which the capabilities have the first line.
func readRefs(packets *packetReader, c *capabilities, query refQuery) (*refs, error) {
	found := &refs{query: query, named: map[string]string{}, tips: map[plumbing.Hash]struct{}{}, head: c.values["symref"]}
	line, end, err := c.firstRef, c.firstRef == "", error(nil)
	if c.version == 2 {
		line, end, err = packets.line()
	}
	var last ref
	for ; err == nil && !end; line, end, err = packets.line() {
		next, err := parseRef(line)
		if err != nil {
			return nil, err
		}
		if tag, peeled := strings.CutSuffix(next.name, "^{}"); !peeled {
			found.add(last)
			last = next
		} else if tag == last.name {
			last.peeled = next.object
		}
	}
	found.add(last)
	return found, err
}

// parseRef returns the ref of a line, which has no name when the line is about something else.
func parseRef(line string) (ref, error) {
	object, rest, found := strings.Cut(line, " ")
	if object == "shallow" {
		return ref{}, nil
	}
	switch {
	case !found || !isObjectName(object):
		return ref{}, fmt.Errorf("%w: no list of refs", errProtocol)
	case len(object) == sha256Length:
		return ref{}, errObjectFormat
	}
	name, attributes, _ := strings.Cut(rest, " ")
	parsed := ref{name: name, object: object}
	for attribute := range strings.FieldsSeq(attributes) {
		if commit, found := strings.CutPrefix(attribute, "peeled:"); found && isObjectName(commit) {
			parsed.peeled = commit
		}
		if target, found := strings.CutPrefix(attribute, "symref-target:"); found && validRefName(target) {
			parsed.target = target
		}
	}
	return parsed, nil
}

// add keeps what the query asks for. It leaves out refs with invalid names, so that a server cannot make one of them match.
func (f *refs) add(found ref) {
	if found.name != headRef && !validRefName(found.name) {
		return
	}
	f.any = true
	if found.name == headRef && found.target != "" {
		f.head = strings.Clone(found.target)
	}
	commit := found.object
	if found.peeled != "" {
		commit = found.peeled
	}
	if slices.Contains(f.query.names, found.name) {
		f.named[strings.Clone(found.name)] = strings.Clone(commit)
	}
	if digits := f.query.digits; digits != "" && strings.HasPrefix(commit, digits) && len(f.commits) < 2 && !slices.Contains(f.commits, commit) {
		f.commits = append(f.commits, strings.Clone(commit))
	}
	if sha := f.query.sha; sha != "" && f.object == "" && (found.object == sha || commit == sha) {
		f.object = strings.Clone(found.object)
	}
	if f.query.tips && (found.name == headRef || strings.HasPrefix(found.name, branchPrefix) || strings.HasPrefix(found.name, tagPrefix)) {
		tip := plumbing.NewHash(found.object)
		if _, known := f.tips[tip]; known || len(f.tips) < maxTips {
			f.tips[tip] = struct{}{}
		} else {
			f.tooMany = true
		}
	}
}

// match returns the commit of the first name that was found.
func (f *refs) match() (Revision, bool) {
	for _, name := range f.query.names {
		if sha, found := f.named[name]; found {
			if name == headRef && f.head != "" {
				name = f.head
			}
			return Revision{SHA: sha, Ref: name}, true
		}
	}
	return Revision{}, false
}

// isObjectName reports whether the text is a full object name in lower case, of either hash function.
func isObjectName(text string) bool {
	return (len(text) == sha1Length || len(text) == sha256Length) && isHex(text)
}

// isHex reports whether the text has nothing but lower-case hexadecimal digits.
func isHex(text string) bool { return strings.Trim(text, "0123456789abcdef") == "" }

// validRefName follows git check-ref-format for a full name.
func validRefName(name string) bool {
	if len(name) > maxRefLength || !strings.HasPrefix(name, "refs/") || strings.HasSuffix(name, ".") || strings.HasSuffix(name, "/") {
		return false
	}
	for _, refused := range []string{"..", "@{", "//", "/.", ".lock/"} {
		if strings.Contains(name+"/", refused) {
			return false
		}
	}
	return !strings.ContainsFunc(name, func(r rune) bool {
		return r <= ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) || r == '\uFFFD' || strings.ContainsRune(`~^:?*[\`, r)
	})
}
