package server

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
	"github.com/stack-controller/stack-controller/internal/file"
)

// projectFiles are the names of a Pulumi project's file, in the order in which pulumi looks for them.
var projectFiles = []string{"Pulumi.yaml", "Pulumi.yml", "Pulumi.json"}

// project returns the absolute directory of the program that the request names. The error tells people why there is none.
func (s *sources) project(request *proto.StartOperationRequest) (string, error) {
	switch source := request.GetSource().(type) {
	case *proto.StartOperationRequest_Artifact:
		return findProject(filepath.Join(s.dir, sourceName), source.Artifact.GetDir(), "artifact")
	case *proto.StartOperationRequest_Local:
		return s.localProject(source.Local.GetDir())
	case *proto.StartOperationRequest_Project:
		return "", nil // The operation works from the state.
	}
	return "", errors.New("the operation names no source")
}

// findProject returns the absolute path of the project in dir of the tree. Neither dir nor a link on the way to the
// project leaves the tree. A leading slash of dir stands for the root of the tree.
func findProject(tree, dir, what string) (string, error) {
	inside := path.Clean(strings.TrimLeft(dir, "/"))
	if !filepath.IsLocal(inside) {
		return "", fmt.Errorf("directory %q is outside of the %s", dir, what)
	}
	root, err := os.OpenRoot(tree)
	if err != nil {
		return "", fmt.Errorf("the %s has no files: %w", what, file.WithoutPath(err))
	}
	defer root.Close()
	info, err := root.Stat(inside)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("directory %q does not exist in the %s", dir, what)
	case err != nil:
		return "", fmt.Errorf("directory %q of the %s cannot be used: %w", dir, what, file.WithoutPath(err))
	case !info.IsDir():
		return "", fmt.Errorf("%q is not a directory of the %s", dir, what)
	}
	if err := requireProjectFile(root.Stat, inside); err != nil {
		return "", fmt.Errorf("directory %q of the %s: %w", dir, what, err)
	}
	return realPath(tree, inside)
}

// findProjectAnywhere returns the path of the project in a directory of the file system. There is nothing that links could
// lead out of.
func findProjectAnywhere(dir string) (string, error) {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", fmt.Errorf("directory %q of the image cannot be used: %w", dir, file.WithoutPath(err))
	}
	if info, err := os.Stat(real); err != nil || !info.IsDir() {
		return "", fmt.Errorf("%q is not a directory of the image", dir)
	}
	if err := requireProjectFile(os.Stat, real); err != nil {
		return "", fmt.Errorf("directory %q of the image: %w", dir, err)
	}
	return real, nil
}

// requireProjectFile checks that the directory has a project file that pulumi can read.
func requireProjectFile(stat func(string) (fs.FileInfo, error), dir string) error {
	for _, name := range projectFiles {
		info, err := stat(path.Join(dir, name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return fmt.Errorf("%s cannot be used: %w", name, file.WithoutPath(err))
		case !info.Mode().IsRegular():
			return fmt.Errorf("%s is not a file", name)
		}
		return nil
	}
	return errors.New("no Pulumi.yaml there")
}

// realPath resolves the links below the tree, but not those above it: the path of the tree is stable, and what tools
// remember is keyed by it.
func realPath(tree, inside string) (string, error) {
	real, err := filepath.EvalSymlinks(filepath.Join(tree, inside))
	if err != nil {
		return "", fmt.Errorf("resolve the project's directory: %w", file.WithoutPath(err))
	}
	realTree, err := filepath.EvalSymlinks(tree)
	if err != nil {
		return "", fmt.Errorf("resolve the project's directory: %w", file.WithoutPath(err))
	}
	relative, err := filepath.Rel(realTree, real)
	if err != nil || !filepath.IsLocal(relative) {
		return "", errors.New("the project's directory is outside of its tree")
	}
	return filepath.Join(tree, relative), nil
}
