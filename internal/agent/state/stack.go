// Package state finds what earlier operations on a stack left behind: in the directory that the agent has for the stack, in the state of
// the stack, and as a lock in its backend.
package state

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/stack-controller/stack-controller/internal/agent/config"
	"github.com/stack-controller/stack-controller/internal/file"
)

// Stack is a Pulumi stack, and the directory in which the agent keeps everything that concerns it. In this directory there is a stub of the
// project with the stack's configuration: commands that do not need the program run there, so that they cannot change the source tree.
type Stack struct {
	// Name is the name of the stack as the user wrote it, Short its last part.
	Name, Short string
	// Dir is the directory of the stack.
	Dir string
}

// stackSegment matches a part of the name of a stack.
var stackSegment = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,100}$`)

// ErrName is the error of Open for a name that no stack can have.
var ErrName = errors.New("unusable name of a stack")

// Open prepares the directory of the stack, below parent. Stacks of the same name in another backend or project have other directories.
// stub is the content of Pulumi.yaml.
func Open(parent, name, backendURL, project string, stub []byte) (*Stack, error) {
	segments := strings.Split(name, "/")
	if len(segments) > 3 {
		return nil, fmt.Errorf("%w: %q has too many parts, it is stack, organization/stack or organization/project/stack", ErrName, name)
	}
	for _, segment := range segments {
		if !stackSegment.MatchString(segment) || strings.Trim(segment, ".") == "" || strings.HasPrefix(segment, "-") {
			return nil, fmt.Errorf("%w: %q does not consist of letters, digits, dashes, underscores and dots", ErrName, name)
		}
	}
	digest := sha256.Sum256([]byte(backendURL + "\x00" + project + "\x00" + name))
	s := &Stack{Name: name, Short: segments[len(segments)-1], Dir: filepath.Join(parent, hex.EncodeToString(digest[:8]))}
	err := os.MkdirAll(s.processDir(), 0o700)
	if err == nil {
		err = file.Write(filepath.Join(s.Dir, "Pulumi.yaml"), stub)
	}
	if err != nil {
		return nil, fmt.Errorf("create the directory of stack %s: %w", name, file.WithoutPath(err))
	}
	return s, nil
}

// ConfigFile returns the path of the configuration of the stack that the CLI reads.
func (s *Stack) ConfigFile() string {
	return filepath.Join(s.Dir, "Pulumi."+s.Short+".yaml")
}

// Scratch makes a directory like that of the stack, whose configuration has only the settings. The caller removes it.
func (s *Stack) Scratch(settings config.Settings) (dir string, err error) {
	dir = filepath.Join(s.Dir, "scratch")
	stub, err := file.Read(filepath.Join(s.Dir, "Pulumi.yaml"), config.MaxSize)
	if err != nil {
		return "", err
	}
	content, err := (&config.File{Settings: settings}).Encode()
	if err != nil {
		return "", err
	}
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
		return "", err
	}
	name := filepath.Base(s.ConfigFile())
	return dir, errors.Join(file.Write(filepath.Join(dir, "Pulumi.yaml"), stub), file.Write(filepath.Join(dir, name), content))
}

// Notes in the directory of a stack.
const (
	// SecretsProvider is the secrets provider that is in force, as a request names it.
	SecretsProvider = "secretsprovider"
	// Removal says that the stack is about to be removed from the backend, after everything in it was destroyed. If the removal is cut off,
	// nothing else distinguishes a stack that was removed from one that is missing. The note counts until the stack exists again.
	Removal = "removed"
)

// Note writes a note.
func (s *Stack) Note(name, text string) error {
	return file.Write(filepath.Join(s.Dir, name), []byte(text))
}

// Noted returns a note, and whether there is one.
func (s *Stack) Noted(name string) (text string, found bool) {
	content, err := file.Read(filepath.Join(s.Dir, name), config.MaxSize)
	return string(content), err == nil
}

// Recovered forgets the processes that are gone, and a removal: the stack exists, and whatever they left has been dealt with.
func (s *Stack) Recovered() {
	for _, pid := range s.LeftOver() {
		_ = os.Remove(s.recordPath(pid))
	}
	_ = os.Remove(filepath.Join(s.Dir, Removal))
}
