package prebuilt

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"net/url"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
)

//go:embed pins.txt
var makers string

// pin is a file of the makers of some tools.
type pin struct {
	tools        []string // names as in package tools
	version      string   // v1.2.3
	system       string   // as in runtime.GOOS
	architecture string   // as in runtime.GOARCH, or * for an image with several
	digest       digest.Digest
	from         *url.URL
	member       string // path of the program in the archive or the image; * is the name of the tool
}

// title is how messages name the pin.
func (p *pin) title() string { return strings.Join(p.tools, ", ") + " " + p.version }

// image reports whether the programs are in an image, and not in an archive.
func (p *pin) image() bool { return p.from.Scheme == "oci" }

// members returns the path in the archive of each tool.
func (p *pin) members() map[string]string {
	members := map[string]string{}
	for _, tool := range p.tools {
		members[strings.ReplaceAll(p.member, "*", tool)] = tool
	}
	return members
}

// parsePins reads pins in the format that pins.txt explains.
func parsePins(text string) ([]*pin, error) {
	var pins []*pin
	number := 0
	for line := range strings.Lines(text) {
		number++
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		p, err := parsePin(strings.Fields(line))
		if err != nil {
			return nil, fmt.Errorf("line %d of the pins: %w", number, err)
		}
		pins = append(pins, p)
	}
	return pins, nil
}

func parsePin(fields []string) (*pin, error) {
	if len(fields) != 6 {
		return nil, fmt.Errorf("has %d fields, not 6", len(fields))
	}
	system, architecture, _ := strings.Cut(fields[2], "/")
	p := &pin{tools: strings.Split(fields[0], ","), version: fields[1], system: system, architecture: architecture, member: fields[5]}
	var err error
	if p.digest, err = digest.Parse(fields[3]); err != nil {
		return nil, fmt.Errorf("digest %q: %w", fields[3], err)
	}
	if p.from, err = url.Parse(fields[4]); err != nil {
		return nil, err
	}
	switch {
	case slices.Contains(p.tools, ""):
		return nil, errors.New("a tool has no name")
	case system == "" || architecture == "":
		return nil, fmt.Errorf("%q is not a system and an architecture", fields[2])
	case p.from.Host == "" || p.from.Scheme != "https" && p.from.Scheme != "oci":
		return nil, fmt.Errorf("%s is neither an address that begins with https:// nor one with oci://", fields[4])
	case architecture == "*" && !p.image():
		return nil, errors.New("only an image can be for all architectures")
	case p.image() && len(p.tools) > 1:
		return nil, errors.New("an image has one tool")
	case path.Clean(p.member) != p.member || path.IsAbs(p.member) || strings.HasPrefix(p.member, ".."):
		return nil, fmt.Errorf("%s is not the path of a member", p.member)
	}
	return p, nil
}

// find returns the pin that has the tool for this machine, and nil if there is none.
func find(pins []*pin, tool string) *pin {
	index := slices.IndexFunc(pins, func(p *pin) bool {
		return slices.Contains(p.tools, tool) && p.system == runtime.GOOS && cmp.Or(strings.Trim(p.architecture, "*"), runtime.GOARCH) == runtime.GOARCH
	})
	if index < 0 {
		return nil
	}
	return pins[index]
}
