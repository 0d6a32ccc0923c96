package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// read returns the objects of a file of YAML documents.
func read(path string) ([]*unstructured.Unstructured, error) {
	content, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the objects: %w", err)
	}
	defer content.Close()
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(content, 4096)
	for {
		object := map[string]any{}
		err := decoder.Decode(&object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the objects of %s: %w", path, err)
		}
		if len(object) > 0 {
			objects = append(objects, &unstructured.Unstructured{Object: object})
		}
	}
}
