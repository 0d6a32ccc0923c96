// Package config has the manifests of an installation, so that a program can apply them.
package config

import (
	"bufio"
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// Namespace is the namespace of an installation: that of Flux.
const Namespace = "flux-system"

// The names of the images in the manifests, with their tag.
const (
	controllerImage = "stack-controller/stack-controller:latest"
	agentImage      = "stack-controller/stack-controller-agent:latest"
)

// The directory has the custom resource definitions, and the file the other objects of config/default.
const definitionsDir = "crd/bases"

//go:embed crd/bases
var definitions embed.FS

//go:embed install.yaml
var others []byte

// Objects returns the objects of config/default, in an order in which they can be created, with the references of the images.
func Objects(controller, agent string) ([]*unstructured.Unstructured, error) {
	files, err := definitions.ReadDir(definitionsDir)
	if err != nil {
		return nil, fmt.Errorf("list the definitions: %w", err)
	}
	var objects []*unstructured.Unstructured
	for _, file := range files {
		content, err := definitions.ReadFile(path.Join(definitionsDir, file.Name()))
		if err != nil {
			return nil, fmt.Errorf("read a definition: %w", err)
		}
		found, err := decode(content)
		if err != nil {
			return nil, fmt.Errorf("decode %s: %w", file.Name(), err)
		}
		for _, definition := range found {
			annotations := definition.GetAnnotations()
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations["kustomize.toolkit.fluxcd.io/prune"] = "disabled" // as crd/kustomization.yaml does
			definition.SetAnnotations(annotations)
		}
		objects = append(objects, found...)
	}
	images := strings.NewReplacer(controllerImage, controller, agentImage, agent)
	rest, err := decode([]byte(images.Replace(string(others))))
	if err != nil {
		return nil, fmt.Errorf("decode install.yaml: %w", err)
	}
	return append(objects, rest...), nil
}

func decode(content []byte) (objects []*unstructured.Unstructured, err error) {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, object); err != nil {
			return nil, err
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}
