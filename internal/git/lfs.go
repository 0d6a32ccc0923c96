package git

import (
	"bytes"
	"strings"
)

const (
	// maxPointer is the size in bytes below which a file can be a pointer of Git LFS, by its specification.
	maxPointer = 1024

	// maxAttributes bounds what is read of a .gitattributes file, in bytes.
	maxAttributes = 1 << 20

	attributesName = ".gitattributes"

	// maxNamedPointers is how many pointers an error names.
	maxNamedPointers = 3
)

// isPointer says whether the content is a pointer of Git LFS: its first line is the version, and the hash and the size follow. Part of
// the version is the address of the specification, of which there are an old and a new one.
//
// A pointer counts only in a repository with a .gitattributes that uses the filter lfs. Without one git itself would check out the
// pointer as it is, for example as the test data of a program about LFS.
func isPointer(content []byte) bool {
	if len(content) >= maxPointer {
		return false
	}
	first, rest, _ := bytes.Cut(content, []byte("\n"))
	switch string(bytes.TrimSuffix(first, []byte("\r"))) {
	case "version https://git-lfs.github.com/spec/v1", "version https://hawser.github.com/spec/v1", "version http://git-media.io/v/2":
	default:
		return false
	}
	var hash, size bool
	for line := range bytes.Lines(rest) {
		hash = hash || bytes.HasPrefix(line, []byte("oid sha256:"))
		size = size || bytes.HasPrefix(line, []byte("size "))
	}
	return hash && size
}

// usesLFS says whether a .gitattributes file gives some files to the filter lfs.
func usesLFS(attributes []byte) bool {
	for line := range strings.Lines(string(attributes)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		for _, field := range fields[1:] {
			if field == "filter=lfs" {
				return true
			}
		}
	}
	return false
}
