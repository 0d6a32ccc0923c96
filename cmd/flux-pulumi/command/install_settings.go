package command

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	smdvalue "sigs.k8s.io/structured-merge-diff/v6/value"
)

// The fields of the Deployment that need more than their name.
const (
	ofManager     = `.spec.template.spec.containers[name="manager"]`
	argsField     = ofManager + ".args"
	imageField    = ofManager + ".image"
	agentVariable = "AGENT_IMAGE"
	agentField    = ofManager + `.env[name="` + agentVariable + `"].value`
)

// checkSettings returns an error if the installation has settings that the manifests would take away, as those of an overlay, or images of
// another registry that the user has not named. Only the Deployment and the network policies are for settings.
func (c *cluster) checkSettings(ctx context.Context, objects []*unstructured.Unstructured, i *installation) error {
	var lost []string
	for _, object := range objects {
		if kind := object.GetKind(); kind != "Deployment" && kind != "NetworkPolicy" {
			continue
		}
		present := &unstructured.Unstructured{}
		present.SetGroupVersionKind(object.GroupVersionKind())
		err := c.read(ctx, client.ObjectKeyFromObject(object), present)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		fields, err := c.fieldsOfOthers(ctx, object, present)
		if err != nil {
			return err
		}
		if object.GetKind() == "Deployment" {
			before, after := &appsv1.Deployment{}, &appsv1.Deployment{}
			if err := asDeployment(present, before); err != nil {
				return err
			}
			if err := asDeployment(object, after); err != nil {
				return err
			}
			if err := i.checkImages(managerOf(before), managerOf(after)); err != nil {
				return err
			}
			fields = settings(fields, before, after)
		}
		for _, field := range fields {
			lost = append(lost, strings.TrimPrefix(named(object)+" "+field, "Deployment "+controllerName+" "))
		}
	}
	if len(lost) > 0 {
		return fmt.Errorf("nothing was changed: the installation has other settings, which this would take away: %s. Upgrade it in the way in which it was "+
			"installed, or take them away with --force. If nobody has changed install.yaml, they are what its version has", strings.Join(lost, ", "))
	}
	return nil
}

// fieldsOfOthers returns the fields of the specification that others have set, and that would have other values when the object was applied. Fields
// that this program has set, too, are its own. Nobody owns the defaults of the API server.
func (c *cluster) fieldsOfOthers(ctx context.Context, object, present *unstructured.Unstructured) (fields []string, _ error) {
	after := object.DeepCopy()
	switch err := c.apply(ctx, after, client.DryRunAll); {
	case err == nil:
	case temporary(err):
		return nil, err
	default:
		return nil, nil // what is against it is found when all is tried
	}
	own, others := &fieldpath.Set{}, &fieldpath.Set{}
	for _, entry := range present.GetManagedFields() {
		if entry.FieldsV1 == nil {
			continue
		}
		set := &fieldpath.Set{}
		if err := set.FromJSON(bytes.NewReader(entry.FieldsV1.GetRawBytes())); err != nil {
			return nil, fmt.Errorf("read who owns the fields of %s: %w", present.GetName(), err)
		}
		if entry.Manager == fieldOwner {
			own = own.Union(set)
		} else {
			others = others.Union(set)
		}
	}
	spec := fieldpath.PathElement{FieldName: new("spec")}
	others.WithPrefix(spec).Leaves().Difference(own.WithPrefix(spec)).Iterate(func(path fieldpath.Path) {
		if !equality.Semantic.DeepEqual(valueAt(present.Object["spec"], path), valueAt(after.Object["spec"], path)) {
			fields = append(fields, ".spec"+path.String())
		}
	})
	return fields, nil
}

// valueAt returns the value of a field; nil if there is none.
func valueAt(value any, path fieldpath.Path) any {
	for _, element := range path {
		switch {
		case element.FieldName != nil:
			value = asMap(value)[*element.FieldName]
		case element.Key != nil:
			items, _ := value.([]any)
			found := slices.IndexFunc(items, func(item any) bool {
				return !slices.ContainsFunc(*element.Key, func(key smdvalue.Field) bool {
					return !smdvalue.Equals(key.Value, smdvalue.NewValueInterface(asMap(item)[key.Name]))
				})
			})
			if found < 0 {
				return nil
			}
			value = items[found]
		}
	}
	return value
}

func asMap(value any) map[string]any {
	found, _ := value.(map[string]any)
	return found
}

// settings replaces the arguments by the names of the flags that would be lost, and leaves out the images, which each version has of its own. It adds
// what an overlay has removed, as for OpenShift.
func settings(fields []string, before, after *appsv1.Deployment) (lost []string) {
	for _, field := range fields {
		switch field {
		case imageField, agentField:
		case argsField:
			for _, arg := range managerOf(before).Args {
				if name, _, _ := strings.Cut(arg, "="); !slices.Contains(managerOf(after).Args, arg) && !slices.Contains(lost, name) {
					lost = append(lost, name)
				}
			}
		default:
			lost = append(lost, field)
		}
	}
	groupOf := func(deployment *appsv1.Deployment) *int64 {
		return ptr.Deref(deployment.Spec.Template.Spec.SecurityContext, corev1.PodSecurityContext{}).FSGroup
	}
	if groupOf(before) == nil && groupOf(after) != nil {
		lost = append(lost, "no .spec.template.spec.securityContext.fsGroup")
	}
	return lost
}

// checkImages returns an error if one of the images is of another registry than before, and the user has not named it.
func (i *installation) checkImages(before, after corev1.Container) error {
	agentOf := func(container corev1.Container) string {
		for _, variable := range container.Env {
			if variable.Name == agentVariable {
				return variable.Value
			}
		}
		return ""
	}
	for _, image := range []struct {
		flag, was, is string
		named         bool
	}{
		{"--image", before.Image, after.Image, i.namesImage}, {"--agent-image", agentOf(before), agentOf(after), i.namesAgent},
	} {
		was, is := repositoryOf(image.was), repositoryOf(image.is)
		if !image.named && was != "" && was != is {
			return fmt.Errorf("nothing was changed: the installation has the image %s, and this would take %s. Name that of the new version with %s, or take "+
				"what the release has with --force", was, is, image.flag)
		}
	}
	return nil
}

// repositoryOf returns the name of an image without its tag and its digest.
func repositoryOf(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if tag := strings.LastIndex(image, ":"); tag > strings.LastIndex(image, "/") {
		return image[:tag]
	}
	return image
}

func asDeployment(object *unstructured.Unstructured, into *appsv1.Deployment) error {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, into); err != nil {
		return fmt.Errorf("read the Deployment %s: %w", object.GetName(), err)
	}
	return nil
}

// managerOf returns the container of the controller.
func managerOf(deployment *appsv1.Deployment) corev1.Container {
	containers := deployment.Spec.Template.Spec.Containers
	if i := slices.IndexFunc(containers, func(container corev1.Container) bool { return container.Name == "manager" }); i >= 0 {
		return containers[i]
	}
	return corev1.Container{}
}
