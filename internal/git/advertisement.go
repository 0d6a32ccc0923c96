package git

import (
	"fmt"
	"strings"
)

const (
	// maxAdvertisement bounds in bytes what a server may say about its refs: about a million of them.
	maxAdvertisement = 64 << 20

	// maxAdvertisedRefs bounds the refs that are kept in memory.
	maxAdvertisedRefs = 500_000

	// maxRefLength bounds the name of a ref in bytes.
	maxRefLength = 1024

	headRef = "HEAD"

	sha1Length   = 40
	sha256Length = 64
)

// advertisedRef is a ref that a server has.
type advertisedRef struct {
	name string
	// object is what the ref names; for an annotated tag the tag.
	object string
	// commit is the object at the end of an annotated tag, "" for others.
	commit string
}

// target is the commit that the ref stands for.
func (a advertisedRef) target() string {
	if a.commit != "" {
		return a.commit
	}
	return a.object
}

// advertisement is what a server says first: what it can do, and its refs.
type advertisement struct {
	capabilities map[string]bool
	// objectFormat is the hash function, sha1 or sha256.
	objectFormat string
	// head is the full name of the branch that HEAD points to, "" if the server does not say.
	head string
	refs []advertisedRef
}

// readAdvertisement reads the refs. Refs whose names are not acceptable are left out: a server cannot make one of those match.
func readAdvertisement(packets *packetReader) (*advertisement, error) {
	a := &advertisement{capabilities: map[string]bool{}, objectFormat: "sha1"}
	for first := true; ; first = false {
		line, flush, err := packets.line()
		if err != nil {
			return nil, err
		}
		if flush {
			return a, nil
		}
		if first {
			text, capabilities, _ := strings.Cut(line, "\x00")
			a.setCapabilities(capabilities)
			line = text
		}
		if err := a.add(line); err != nil {
			return nil, err
		}
	}
}

func (a *advertisement) setCapabilities(list string) {
	for capability := range strings.FieldsSeq(list) {
		name, value, _ := strings.Cut(capability, "=")
		switch name {
		case "object-format":
			a.objectFormat = value
		case "symref":
			if from, to, found := strings.Cut(value, ":"); found && from == headRef && validRefName(to) {
				a.head = to
			}
		}
		a.capabilities[name] = true
	}
}

func (a *advertisement) add(line string) error {
	if strings.HasPrefix(line, "shallow ") || strings.HasPrefix(line, "version ") {
		return nil
	}
	object, name, found := strings.Cut(line, " ")
	if !found || !isObjectName(object) {
		return fmt.Errorf("%w: no list of refs", errProtocol)
	}
	if len(object) == sha256Length {
		a.objectFormat = "sha256"
	}
	if tag, peeled := strings.CutSuffix(name, "^{}"); peeled {
		if last := len(a.refs) - 1; last >= 0 && a.refs[last].name == tag {
			a.refs[last].commit = object
		}
		return nil // also of a repository without refs, which advertises capabilities^{}
	}
	if name != headRef && !validRefName(name) {
		return nil
	}
	if len(a.refs) == maxAdvertisedRefs {
		return fmt.Errorf("%w: more than %d refs", errBodyTooLarge, maxAdvertisedRefs)
	}
	a.refs = append(a.refs, advertisedRef{name: name, object: object})
	return nil
}

// find gives the ref of that full name.
func (a *advertisement) find(name string) (advertisedRef, bool) {
	for _, ref := range a.refs {
		if ref.name == name {
			return ref, true
		}
	}
	return advertisedRef{}, false
}

// isObjectName says whether the text is a full object name in lower case, of either hash function.
func isObjectName(text string) bool {
	return (len(text) == sha1Length || len(text) == sha256Length) && isHex(text)
}

// isHex says whether the text has nothing but lower-case hexadecimal digits.
func isHex(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'f') })
}

// validRefName follows git check-ref-format for a full name.
func validRefName(name string) bool {
	if len(name) > maxRefLength || !strings.HasPrefix(name, "refs/") || strings.HasSuffix(name, ".") || strings.HasSuffix(name, "/") {
		return false
	}
	if strings.Contains(name, "..") || strings.Contains(name, "@{") || strings.Contains(name, "//") || strings.Contains(name, "/.") ||
		strings.HasSuffix(name, ".lock") || strings.Contains(name, ".lock/") {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool {
		return r <= ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) || r == '\uFFFD' || strings.ContainsRune(`~^:?*[\`, r)
	})
}
