package server

import (
	"os"
	"strings"

	"github.com/opencontainers/go-digest"
)

// The marker says which artifact the source was unpacked from. It names the boot of the machine too, and is worth nothing
// after the next one: the tree is not flushed to the disk, so a crash of the machine may leave files empty under a good
// marker, and a program that lost files would delete resources. A crash of the agent does not matter.

// readMarker returns the digest of the source; empty when there is none that can be relied on.
func readMarker(root *os.Root) string {
	content, err := readFile(root, markerName, maxMarkerSize)
	if err != nil {
		return ""
	}
	text, boot, found := strings.Cut(strings.TrimSuffix(string(content), "\n"), "\n")
	if !found || boot == "" || boot != bootID() || digest.Digest(text).Validate() != nil {
		return ""
	}
	return text
}

// writeMarker says that the source is complete.
func writeMarker(root *os.Root, digest string) error {
	return writeFile(root, markerName, []byte(digest+"\n"+bootID()+"\n"), false)
}

// bootID identifies this boot of the machine; it is empty where the system does not tell.
func bootID() string {
	content, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}
