// Package render makes the artifact of a Program: a tarball with a project of Pulumi YAML.
package render

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/jsonparts"
)

const (
	// fileName is the only file of a rendered program.
	fileName = "Pulumi.yaml"

	// maxName is how long the name of a Pulumi project may be.
	maxName = 100

	// maxRendered is how large a Pulumi.yaml may become, in bytes. An object in the cluster has less than 2 MiB, but indentation makes the
	// file larger.
	maxRendered = 4 << 20
)

// InvalidError says why a program cannot be rendered. A user has to edit the Program. The error never contains a value of the program,
// which may be a secret.
type InvalidError struct {
	// Path of the field in the Program, for example program.runtime.
	Path string
	// Message says what is wrong with the field.
	Message string
}

// Error implements error.
func (e *InvalidError) Error() string { return e.Path + ": " + e.Message }

// Program returns the program as a tarball (tar.gz) with the single file Pulumi.yaml: a project with the name of the Program and the runtime
// yaml. The same content always gives the same bytes, whatever the generation, the labels or the order of keys are. If a program cannot be
// rendered, the error is an *InvalidError. It does not check whether Pulumi can run the program: this depends on the version of Pulumi
// in the workspace, and a list of fields here would refuse fields that a newer language host knows.
func Program(program *pulumiv1.Program) (tarball []byte, err error) {
	body, err := decode(program)
	if err != nil {
		return nil, err
	}
	if len(program.Name) > maxName {
		return nil, &InvalidError{"metadata.name",
			fmt.Sprintf("must not be longer than %d characters: it is the name of the Pulumi project", maxName)}
	}
	// The keys that Program writes itself must not occur twice.
	if _, found := body["name"]; found {
		return nil, &InvalidError{"program.name", "cannot be set: the name of the project is that of the Program"}
	}
	if _, found := body["runtime"]; found {
		return nil, &InvalidError{"program.runtime", "cannot be set: the runtime of a Program is yaml"}
	}
	w := &yamlWriter{}
	w.entry("name", program.Name, 0)
	w.entry("runtime", "yaml", 0)
	w.object(body, 0)
	if w.failure != "" {
		return nil, &InvalidError{"program", w.failure}
	}
	return pack(w.out.Bytes())
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
	if parts, _ := jsonparts.Count(written); parts > jsonparts.MaxParts {
		return nil, &InvalidError{"program", fmt.Sprintf("has more than %d keys and values: make it smaller, or use a source with files", jsonparts.MaxParts)}
	}
	decoder := json.NewDecoder(bytes.NewReader(written))
	decoder.UseNumber()
	var body map[string]any
	if err := decoder.Decode(&body); err != nil {
		return nil, &InvalidError{"program", "must be an object"}
	}
	return body, nil
}

// pack makes the tarball.
func pack(file []byte) ([]byte, error) {
	var out bytes.Buffer
	archive := tar.NewWriter(&out)
	err := archive.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: fileName, Size: int64(len(file)), Mode: 0o644, ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR,
	})
	if err == nil {
		_, err = archive.Write(file)
	}
	if err = errors.Join(err, archive.Close()); err != nil {
		return nil, fmt.Errorf("pack the program: %w", err)
	}
	return storeGzip(out.Bytes()), nil
}
