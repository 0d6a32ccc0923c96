package server

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

const (
	linkRecord = "workspace.link"
	newLink    = "workspace.new"
)

// maxRecordedLink bounds what is read of the record, in bytes.
const maxRecordedLink = 16 << 10

// workspaceLink leads people who work in a pod to the program: its workspace, where a shell starts, becomes a link to the
// directory of the last operation. Only an empty directory and a link that it made itself are replaced: an init container
// may have put something else there.
type workspaceLink struct {
	log  *slog.Logger
	root *os.Root
	// name is that of the link in the directory of the agent; empty when there is none to make.
	name string
	// source is the directory of delivered sources: a link into it is ours.
	source string
}

// openLink returns the link at the path of the workspace.
func openLink(log *slog.Logger, root *os.Root, dir, workspace string) *workspaceLink {
	l := &workspaceLink{log: log, root: root, source: filepath.Join(dir, sourceName)}
	if Shared(dir, workspace) {
		l.name = filepath.Base(workspace)
	}
	return l
}

// Shared tells whether the workspace is one in which people work beside the agent, as in a pod: it is directly in the agent's
// directory then. Anywhere else the agent replaces nothing. Both paths have to be absolute.
func Shared(dir, workspace string) bool {
	return filepath.IsAbs(workspace) && filepath.Dir(workspace) == filepath.Clean(dir) && !slices.Contains(ownNames, filepath.Base(workspace))
}

// point makes the link lead to the directory, if it may. An operation does not depend on it, so nothing fails.
func (l *workspaceLink) point(target string) {
	if l.name == "" {
		return
	}
	replaced, err := l.replace(target)
	switch {
	case err != nil:
		l.log.Warn("the workspace does not lead to the program", "program", target, "error", err.Error())
	case !replaced:
		l.log.Info("the workspace has files of its own, it does not lead to the program", "program", target)
	}
}

// replace tells whether the link leads to the target now.
func (l *workspaceLink) replace(target string) (bool, error) {
	info, err := l.root.Lstat(l.name)
	var current string
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return false, err
	case info.Mode().Type() == fs.ModeSymlink:
		if current, err = l.root.Readlink(l.name); err != nil || current == target {
			return err == nil, err
		}
		if !l.made(current) {
			return false, nil
		}
	case info.IsDir():
		// It fails when there is something in it.
		if l.root.Remove(l.name) != nil {
			return false, nil
		}
	default:
		return false, nil
	}
	// Both, because the agent may end before the link is replaced.
	err = writeFile(l.root, linkRecord, []byte(current+"\n"+target+"\n"), false)
	return err == nil, errors.Join(err, ignoreMissing(l.root.Remove(newLink)), l.root.Symlink(target, newLink), l.root.Rename(newLink, l.name))
}

// made tells whether a link with this target is one of ours.
func (l *workspaceLink) made(target string) bool {
	if inside, err := filepath.Rel(l.source, target); err == nil && filepath.IsLocal(inside) {
		return true
	}
	record, err := readFile(l.root, linkRecord, maxRecordedLink)
	return err == nil && target != "" && slices.Contains(strings.Split(string(record), "\n"), target)
}

// leads tells whether the workspace is a link of ours at present: then it has no programs of its own.
func (l *workspaceLink) leads() bool {
	if l.name == "" {
		return false
	}
	target, err := l.root.Readlink(l.name)
	return err == nil && l.made(target)
}

// localProject returns the directory of a program that came with the workspace. A relative one is below the workspace; an
// absolute one is below the local root, when there is one: the image may bring the program.
func (s *sources) localProject(dir string) (string, error) {
	switch {
	case !filepath.IsAbs(dir) && s.link.leads():
		return "", errors.New("the workspace has no program of its own")
	case !filepath.IsAbs(dir):
		return findProject(s.workspace, dir, "workspace")
	case s.localRoot == "":
		return "", fmt.Errorf("directory %q is outside of the workspace", dir)
	case s.localRoot == "/":
		return findProjectAnywhere(dir)
	}
	return findProject(s.localRoot, dir, "image")
}

// show leads the workspace to the program of the request when it is not in the workspace anyway.
func (s *sources) show(request *proto.StartOperationRequest, project string) {
	if request.GetArtifact() != nil || filepath.IsAbs(request.GetLocal().GetDir()) {
		s.link.point(project)
	}
}
