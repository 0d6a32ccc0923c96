package prebuilt

import (
	"archive/tar"
	"compress/gzip"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
)

const (
	// maxProgram is the most that a program may have, in bytes.
	maxProgram = 512 << 20
	// maxUnpacked is the most that an archive may have when it is unpacked, in bytes.
	maxUnpacked = 4 << 30
)

// unpack writes members of a tar archive, which is compressed with gzip, to files, and returns which members it found. members has the path
// of the file of each member, which must be a regular file. The rest of the archive is not written anywhere. All of it may have limit bytes.
func unpack(archive io.Reader, members map[string]string, limit int64) (found []string, err error) {
	unzipped, err := gzip.NewReader(archive)
	if err != nil {
		return nil, fmt.Errorf("read the archive: %w", err)
	}
	limited := &io.LimitedReader{R: unzipped, N: limit}
	reader := tar.NewReader(limited)
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			if limited.N <= 0 {
				err = fmt.Errorf("it has more than %d bytes", limit)
			}
			return nil, fmt.Errorf("read the archive: %w", err)
		}
		// Some archives have ./ before all names.
		name := path.Clean(header.Name)
		target, wanted := members[name]
		if !wanted {
			continue
		}
		if header.Typeflag != tar.TypeReg {
			return nil, fmt.Errorf("%s in the archive is not a regular file", name)
		}
		if header.Size > maxProgram {
			return nil, fmt.Errorf("%s in the archive has %d bytes, more than %d", name, header.Size, maxProgram)
		}
		if err := writeProgram(target, reader); err != nil {
			return nil, err
		}
		found = append(found, name)
	}
}

// writeProgram creates the file, which must not exist. After a crash of the machine it is whole, or not there under its final name.
func writeProgram(target string, content io.Reader) error {
	file, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return fmt.Errorf("unpack %s, which may be in the archive twice: %w", filepath.Base(target), err)
	}
	_, err = io.CopyN(file, content, maxProgram)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(target), err)
	}
	return nil
}

// machines has what programs for an architecture have in their header.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// checkMachine returns an error unless the file is a program for Linux on the architecture.
func checkMachine(file, architecture string) error {
	program, err := elf.Open(file)
	if err != nil {
		return fmt.Errorf("it is not a program for Linux: %w", err)
	}
	defer program.Close()
	if wanted := machines[architecture]; program.Machine != wanted {
		return fmt.Errorf("it is a program for %s, not for %s", program.Machine, wanted)
	}
	return nil
}
