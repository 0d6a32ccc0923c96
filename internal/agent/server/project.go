package server

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/file"
)

// projectFiles are the possible names of a Pulumi project file, in the order in which pulumi looks for them.
var projectFiles = []string{"Pulumi.yaml", "Pulumi.yml", "Pulumi.json"}

// project returns the absolute directory of the program in the request; empty if the operation needs none. The error explains to people why
// there is none.
func (s *sources) project(request *agentpb.StartOperationRequest) (string, error) {
	switch source := request.GetSource().(type) {
	case *agentpb.StartOperationRequest_Artifact:
		links, err := s.leftOut()
		if err == nil {
			err = s.requireOwnFiles(source.Artifact.GetDir(), links)
		}
		if err != nil {
			return "", err
		}
		return findProject(filepath.Join(s.dir, sourceName), source.Artifact.GetDir(), "artifact", filepath.Join(s.dir, mountsName))
	case *agentpb.StartOperationRequest_Local:
		return s.localProject(source.Local.GetDir())
	case *agentpb.StartOperationRequest_Project:
		return "", nil // The operation works from the state.
	}
	return "", errors.New("the operation names no source")
}

// findProject returns the absolute path of the project in the directory dir of the tree. Neither dir nor a symbolic link on the way to the
// project may lead out of the tree. Only a tree that comes with the image can have such links: archives are unpacked without them. A leading slash of dir means the root of the tree.
//
// Links to what is mounted for the tree stay inside.
func findProject(tree, dir, what, mounts string) (string, error) {
	if inside := path.Clean(strings.TrimLeft(dir, "/")); !filepath.IsLocal(inside) {
		return "", fmt.Errorf("directory %q is outside of the %s", dir, what)
	}
	realTree, err := filepath.EvalSymlinks(tree)
	if err != nil {
		return "", fmt.Errorf("the %s has no files: %w", what, file.WithoutPath(err))
	}
	if realMounts, err := filepath.EvalSymlinks(mounts); err == nil {
		mounts = realMounts
	}
	inside, info, err := resolve(realTree, dir, mounts)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("directory %q does not exist in the %s", dir, what)
	case err != nil:
		return "", fmt.Errorf("directory %q of the %s cannot be used: %w", dir, what, err)
	case !info.IsDir():
		return "", fmt.Errorf("%q is not a directory of the %s", dir, what)
	}
	for _, name := range projectFiles {
		_, info, err := resolve(realTree, filepath.Join(inside, name), mounts)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return "", fmt.Errorf("directory %q of the %s: %s cannot be used: %w", dir, what, name, err)
		case !info.Mode().IsRegular():
			return "", fmt.Errorf("directory %q of the %s: %s is not a file", dir, what, name)
		}
		// Links inside the tree are resolved, but not links in the path of the tree: this path is stable, and tools use it as a key for what they
		// cache.
		return filepath.Join(tree, inside), nil
	}
	return "", fmt.Errorf("directory %q of the %s: no Pulumi.yaml there", dir, what)
}

// resolve follows the links to the file or directory, and returns its path in the tree and its file info. The path of the tree has no
// links, unless the file is in mounts.
func resolve(tree, name, mounts string) (inside string, info fs.FileInfo, err error) {
	real, err := filepath.EvalSymlinks(filepath.Join(tree, name))
	if err == nil {
		info, err = os.Lstat(real)
	}
	if err != nil {
		return "", nil, file.WithoutPath(err)
	}
	if inside, err = filepath.Rel(tree, real); err == nil && filepath.IsLocal(inside) {
		return inside, info, nil
	}
	if mounted, err := filepath.Rel(mounts, real); mounts != "" && err == nil && filepath.IsLocal(mounted) {
		return path.Clean(strings.TrimLeft(name, "/")), info, nil
	}
	return "", nil, errors.New("a link leads out of it")
}
