package program

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"time"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

const (
	// FileName is the only file of a rendered program.
	FileName = "Pulumi.yaml"

	// maxRendered is how large a Pulumi.yaml may become, in bytes. An object in the cluster has less than 2 MiB; indentation makes
	// more of it.
	maxRendered = 4 << 20

	// maxDepth is how deep objects and lists may be nested. Real programs stay below 20; indentation grows with the square of it.
	maxDepth = 100
)

// Render returns the program as a tarball (tar.gz) with the one file Pulumi.yaml: a project of the Program's name with the runtime
// yaml. The same content always gives the same bytes, whatever the generation, the labels or the order of keys are. A program
// that cannot be run gives an *InvalidError.
func Render(program *pulumiv1.Program) (tarball []byte, err error) {
	body, err := decode(program)
	if err != nil {
		return nil, err
	}
	if problems := check(program.Name, body); len(problems) > 0 {
		return nil, &InvalidError{Problems: problems}
	}
	file, err := pulumiYAML(program.Name, body)
	if err != nil {
		return nil, err
	}
	return pack(file)
}

// decode returns the program as it was written, with numbers as json.Number.
func decode(program *pulumiv1.Program) (map[string]any, error) {
	written := program.Program.Verbatim
	if written == nil {
		var err error
		if written, err = json.Marshal(program.Program); err != nil {
			return nil, fmt.Errorf("encode the program: %w", err)
		}
	}
	decoder := json.NewDecoder(bytes.NewReader(written))
	decoder.UseNumber()
	var body map[string]any
	if err := decoder.Decode(&body); err != nil {
		return nil, &InvalidError{Problems: []Problem{{Path: root, Message: "must be an object"}}}
	}
	return body, nil
}

// pulumiYAML returns the content of the file. The name and the runtime come first, as people write it.
func pulumiYAML(name string, body map[string]any) ([]byte, error) {
	w := &yamlWriter{limit: maxRendered}
	w.entry("name", name, 0)
	w.entry("runtime", "yaml", 0)
	if len(body) > 0 {
		w.object(body, 0)
	}
	if w.full {
		return nil, &InvalidError{Problems: []Problem{{Path: root, Message: fmt.Sprintf("is larger than %d bytes as a Pulumi.yaml", maxRendered)}}}
	}
	return w.out.Bytes(), nil
}

// pack makes the tarball. It is not compressed: the bytes that a compressor writes may change with its version, and with them
// the digest of every Program and an update of every Stack.
func pack(file []byte) ([]byte, error) {
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.NoCompression)
	if err != nil {
		return nil, fmt.Errorf("pack the program: %w", err)
	}
	archive := tar.NewWriter(zip)
	header := &tar.Header{
		Typeflag: tar.TypeReg, Name: FileName, Size: int64(len(file)), Mode: 0o644, ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR,
	}
	if err := archive.WriteHeader(header); err != nil {
		return nil, fmt.Errorf("pack the program: %w", err)
	}
	if _, err := archive.Write(file); err != nil {
		return nil, fmt.Errorf("pack the program: %w", err)
	}
	for _, closer := range []io.Closer{archive, zip} {
		if err := closer.Close(); err != nil {
			return nil, fmt.Errorf("pack the program: %w", err)
		}
	}
	return out.Bytes(), nil
}
