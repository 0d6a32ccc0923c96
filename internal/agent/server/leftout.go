package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/stack-controller/stack-controller/internal/agent/operation"
	"github.com/stack-controller/stack-controller/internal/file"
)

const (
	// maxLeftOutSize bounds what is read of the list of links, in bytes: 1000 names of up to 1024 bytes, encoded.
	maxLeftOutSize = 8 << 20
	// maxLoggedLinks is how many links the log names.
	maxLoggedLinks = 10
)

// keepLeftOut records the symbolic links that the incoming tree does not have.
func (s *sources) keepLeftOut(links []string) error {
	if len(links) == 0 {
		return nil
	}
	s.log.Info("symbolic links of the source are left out", "count", len(links), "first", links[:min(len(links), maxLoggedLinks)])
	content, err := json.Marshal(links)
	if err != nil {
		return err
	}
	return file.WriteIn(s.root, incomingLinks, content, false)
}

// leftOut returns the absolute paths that the symbolic links would have in the source.
func (s *sources) leftOut() ([]string, error) {
	content, err := file.ReadIn(s.root, linksName, maxLeftOutSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var links []string
	if err == nil {
		err = json.Unmarshal(content, &links)
	}
	if err != nil {
		return nil, fmt.Errorf("read which symbolic links the artifact had: %w", file.WithoutPath(err))
	}
	for n, link := range links {
		links[n] = filepath.Join(s.dir, sourceName, link)
	}
	return links, nil
}

// requireOwnFiles fails if the project file of the directory, or a directory on its path, is a link that was left out.
func (s *sources) requireOwnFiles(dir string, leftOut []string) error {
	tree := filepath.Join(s.dir, sourceName)
	for _, name := range projectFiles {
		path := filepath.Join(tree, filepath.Clean("/"+dir), name)
		if link := operation.LinkOf(path, leftOut); link != "" {
			return fmt.Errorf("%q in the artifact %s", filepath.Join(dir, name), operation.DescribeLink(tree, link))
		}
		if _, err := s.root.Lstat(filepath.Join(sourceName, filepath.Clean("/"+dir), name)); err == nil {
			return nil
		}
	}
	return nil
}
