package server

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

const (
	// programLink leads to the program of the last operation. A workspace that is a link to it is one of ours.
	programLink = "program"
	newLink     = "program.new"
)

// Shared reports whether the workspace is one in which people work beside the agent, as in a pod: it is directly in the agent's
// directory then. Anywhere else the agent replaces nothing. Both paths have to be absolute.
func Shared(dir, workspace string) bool {
	return filepath.IsAbs(workspace) && filepath.Dir(workspace) == filepath.Clean(dir) && !slices.Contains(ownNames, filepath.Base(workspace))
}

// show leads people who work in a pod to the program: the workspace, where a shell starts, becomes a link to the directory of the
// operation, if that is not in the workspace anyway. Only an empty directory is replaced: an init container may have put something else
// there. An operation does not depend on it, so nothing fails.
func (s *sources) show(request *proto.StartOperationRequest, project string) {
	if !s.shared || request.GetArtifact() == nil && !filepath.IsAbs(request.GetLocal().GetDir()) {
		return
	}
	name := filepath.Base(s.workspace)
	// A directory that has something in it stays.
	if info, err := s.root.Lstat(name); err == nil && info.IsDir() {
		_ = s.root.Remove(name)
	}
	err := s.root.Symlink(programLink, name)
	if errors.Is(err, fs.ErrExist) && !s.workspaceIsLink() {
		s.log.Info("the workspace has files of its own, it does not lead to the program", "program", project)
		return
	}
	err = errors.Join(ignoreMissing(s.root.Remove(newLink)), s.root.Symlink(project, newLink), s.root.Rename(newLink, programLink))
	if err != nil {
		s.log.Warn("the workspace does not lead to the program", "program", project, "error", err.Error())
	}
}

// workspaceIsLink reports whether the workspace is a link of ours: then it has no programs of its own.
func (s *sources) workspaceIsLink() bool {
	if !s.shared {
		return false
	}
	target, err := s.root.Readlink(filepath.Base(s.workspace))
	return err == nil && target == programLink
}

// localProject returns the directory of a program that came with the workspace. A relative one is below the workspace; an
// absolute one is below the local root, when there is one: the image may bring the program.
func (s *sources) localProject(dir string) (string, error) {
	switch {
	case !filepath.IsAbs(dir) && s.workspaceIsLink():
		return "", errors.New("the workspace has no program of its own")
	case !filepath.IsAbs(dir):
		return findProject(s.workspace, dir, "workspace")
	case s.localRoot == "":
		return "", fmt.Errorf("directory %q is outside of the workspace", dir)
	}
	return findProject(s.localRoot, dir, "image")
}
