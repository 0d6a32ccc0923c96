package images

import (
	"context"
	"debug/elf"
	"fmt"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// shellPath is where the commands of the images are.
const shellPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// busybox is the layer that all images with a shell share: Debian's static busybox, a link per command, and /tmp.
func busybox(ctx context.Context) (layer, error) {
	binary, err := exec.LookPath("busybox")
	if err != nil {
		return nil, fmt.Errorf("find the shell of the images, install the package busybox-static: %w", err)
	}
	if binary, err = filepath.EvalSymlinks(binary); err != nil {
		return nil, fmt.Errorf("find the shell of the images: %w", err)
	}
	if err := checkStatic(binary); err != nil {
		return nil, err
	}
	output, err := exec.CommandContext(ctx, binary, "--list-full").Output()
	if err != nil {
		return nil, fmt.Errorf("list the commands of %s: %w", binary, err)
	}
	commands := strings.Fields(string(output))
	slices.Sort(commands)
	result := layer{temporary()}
	for _, dir := range []string{"bin", "sbin", "usr", "usr/bin", "usr/sbin", "root"} {
		result = append(result, directory(dir, 0o755, 0))
	}
	result = append(result, program("bin/busybox", binary, 0))
	for _, command := range commands {
		// A few have a place of their own, such as /linuxrc, that no script asks for.
		if strings.HasSuffix(path.Dir(command), "bin") && command != "bin/busybox" {
			result = append(result, link(command, "/bin/busybox"))
		}
	}
	return result, nil
}

// checkStatic sees to it that the program runs where there are no libraries.
func checkStatic(binary string) error {
	file, err := elf.Open(binary)
	if err != nil {
		return fmt.Errorf("look at %s: %w", binary, err)
	}
	defer file.Close()
	if slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return fmt.Errorf("%s needs shared libraries: install the package busybox-static instead of busybox", binary)
	}
	return nil
}
