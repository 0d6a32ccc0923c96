package automation

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"gopkg.in/yaml.v3"
)

// stack is a Pulumi stack, and the directory below Home in which everything that concerns it is kept. In this directory
// there is a stub of the project with the stack's configuration: commands that do not need the program run there, so that
// they cannot change the source tree.
type stack struct {
	// name is the stack as the user wrote it, short the last part of the name.
	name, short string
	// key identifies the stack in this agent.
	key string
	dir string
}

// stackSegment is what a part of a stack's name may be.
var stackSegment = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,100}$`)

// openStack makes the stack's directory ready. The backend is part of what the stack is.
func (r *Runner) openStack(name, backendURL string, project *project) (*stack, error) {
	segments := strings.Split(name, "/")
	if len(segments) > 3 {
		return nil, configInvalid("stack %q: the name has too many parts, it is stack, organization/stack or organization/project/stack", name)
	}
	for _, segment := range segments {
		if !stackSegment.MatchString(segment) || strings.Trim(segment, ".") == "" || strings.HasPrefix(segment, "-") {
			return nil, configInvalid("stack %q: a name consists of letters, digits, dashes, underscores and dots", name)
		}
	}
	digest := sha256.Sum256([]byte(backendURL + "\x00" + project.name + "\x00" + name))
	s := &stack{name: name, short: segments[len(segments)-1], key: hex.EncodeToString(digest[:8])}
	s.dir = filepath.Join(r.stateDir("stacks"), s.key)
	if err := os.MkdirAll(s.recordDir(), 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of stack %s: %w", name, err)
	}
	return s, s.writeStub(project)
}

// configFile is the configuration of the stack as the CLI gets it.
func (s *stack) configFile() string {
	return filepath.Join(s.dir, "Pulumi."+s.short+".yaml")
}

// stubKeys are the parts of a project that matter without its program: where the state is, and what the stack is tagged with.
var stubKeys = []string{"name", "runtime", "description", "backend"}

func (s *stack) writeStub(project *project) error {
	stub := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	setKey(stub, "name", stringNode(project.name))
	setKey(stub, "runtime", stringNode(project.runtime))
	if project.document != nil {
		budget := maxNodes
		for _, key := range stubKeys {
			if value := valueOf(project.document, key); value != nil {
				copied, err := expanded(value, &budget)
				if err != nil {
					return projectInvalid("%s is not valid: %s: %s", project.file, key, err)
				}
				setKey(stub, key, copied)
			}
		}
	}
	content, err := (&stackFile{root: stub}).encode()
	if err != nil {
		return projectInvalid("%s is not valid: %s", project.file, err)
	}
	return writeFile(filepath.Join(s.dir, "Pulumi.yaml"), content)
}

// writeFile replaces the file in one step, so that a crash leaves the old content or the new one.
func writeFile(path string, content []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	_, err = file.Write(content)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name())
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return nil
}
