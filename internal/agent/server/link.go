package server

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

const (
	// programLink is a link to the program of the last operation. A workspace that is a link to programLink was created by the agent.
	programLink = "program"
	newLink     = "program.new"
)

// Shared reports whether people use the workspace as well, as in a pod: then it is directly in the agent's directory. The agent does not
// replace a workspace anywhere else. Both paths have to be absolute.
func Shared(dir, workspace string) bool {
	return filepath.IsAbs(workspace) && filepath.Dir(workspace) == filepath.Clean(dir) && !slices.Contains(ownNames, filepath.Base(workspace))
}

// linkWorkspace makes the program easy to find for people who work in a pod: it replaces the workspace, where a shell starts, by a link to
// the directory of the operation, unless that directory is in the workspace anyway. It replaces only an empty directory, because an init
// container may have put files there. Operations do not depend on the link, so linkWorkspace returns no error.
func (s *sources) linkWorkspace(request *agentpb.StartOperationRequest, project string) {
	if !s.shared || request.GetArtifact() == nil && !filepath.IsAbs(request.GetLocal().GetDir()) {
		return
	}
	name := filepath.Base(s.workspace)
	// Remove does not remove a directory that is not empty.
	if info, err := s.root.Lstat(name); err == nil && info.IsDir() {
		_ = s.root.Remove(name)
	}
	err := s.root.Symlink(programLink, name)
	if errors.Is(err, fs.ErrExist) && !s.workspaceIsLink() {
		s.log.Warn("the workspace has files of its own, which the program does not see", "program", project)
		return
	}
	err = errors.Join(ignoreMissing(s.root.Remove(newLink)), s.root.Symlink(project, newLink), s.root.Rename(newLink, programLink))
	if err != nil {
		s.log.Warn("the workspace does not lead to the program", "program", project, "error", err.Error())
	}
}

// workspaceIsLink reports whether the workspace is a link that the agent created: then it has no programs of its own.
func (s *sources) workspaceIsLink() bool {
	if !s.shared {
		return false
	}
	target, err := s.root.Readlink(filepath.Base(s.workspace))
	return err == nil && target == programLink
}

// localProject returns the directory of a program that came with the workspace. A relative directory is below the workspace. An absolute
// one is below the local root, if there is one, because the image may contain the program.
func (s *sources) localProject(dir string) (string, error) {
	switch {
	case !filepath.IsAbs(dir) && s.workspaceIsLink():
		return "", errors.New("the workspace has no program of its own")
	case !filepath.IsAbs(dir):
		return findProject(s.workspace, dir, "workspace", "")
	case s.localRoot == "":
		return "", fmt.Errorf("directory %q is outside of the workspace", dir)
	}
	return findProject(s.localRoot, dir, "image", "")
}
