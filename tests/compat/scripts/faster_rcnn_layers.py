"""Faster R-CNN style: roidb fed by a thread through a FIFOQueue of placeholders; py_func layers; losses of variable-size arrays."""

import threading
import numpy as np
import tensorflow as tf


class EasyDict(dict):
  def __getattr__(self, name):
    return self[name]


cfg = EasyDict(
  IMS_PER_BATCH=1,
  PIXEL_MEANS=np.array([[[102.9801, 115.9465, 122.7717]]]),
  MAX=20,
)


class RoIDataLayer(object):
  def __init__(self, n):
    self.rng = np.random.RandomState(3)
    self.n = n
    self._shuffle()

  def _shuffle(self):
    self._perm = self.rng.permutation(np.arange(self.n))
    self._cur = 0

  def forward(self):
    if self._cur + cfg.IMS_PER_BATCH >= self.n:
      self._shuffle()
    i = self._perm[self._cur]
    self._cur += cfg.IMS_PER_BATCH
    r = np.random.RandomState(i)
    im = (
      r.randint(0, 255, (1, 8 + i % 3, 9 + i % 4, 3)).astype(np.float32)
      - cfg.PIXEL_MEANS
    )
    boxes = np.concatenate(
      [r.rand(1 + i % 3, 4) * 8, r.randint(1, 4, (1 + i % 3, 1))], 1
    )
    return {
      "data": im,
      "gt_boxes": boxes.astype(np.float32),
      "im_info": np.array([[im.shape[1], im.shape[2], 1.6]], np.float32),
    }


def anchors(height, width, stride):
  sx, sy = np.meshgrid(
    np.arange(0, width) * stride, np.arange(0, height) * stride
  )
  s = np.vstack((sx.ravel(), sy.ravel(), sx.ravel(), sy.ravel())).transpose()
  a = np.array([[-2, -2, 3, 3], [-1, -3, 2, 4]])
  out = (
    a.reshape((1, 2, 4)) + s.reshape((1, -1, 4)).transpose((1, 0, 2))
  ).reshape(-1, 4)
  return out.astype(np.float32, copy=False), np.int32(out.shape[0])


def nms(dets, thresh):
  x1, y1, x2, y2, s = dets.T
  area = (x2 - x1 + 1) * (y2 - y1 + 1)
  order = s.argsort()[::-1]
  keep = []
  while order.size > 0:
    i = order[0]
    keep.append(i)
    w = np.maximum(
      0.0,
      np.minimum(x2[i], x2[order[1:]]) - np.maximum(x1[i], x1[order[1:]]) + 1,
    )
    h = np.maximum(
      0.0,
      np.minimum(y2[i], y2[order[1:]]) - np.maximum(y1[i], y1[order[1:]]) + 1,
    )
    order = order[1:][w * h / (area[i] + area[order[1:]] - w * h) <= thresh]
  return np.array(keep, np.int64)


def proposal(scores, boxes, thresh):
  k = nms(np.hstack([boxes, scores[:, None]]).astype(np.float32), thresh)
  return np.hstack([np.zeros((len(k), 1), np.float32), boxes[k]]).astype(
    np.float32
  ), scores[k].astype(np.float32)


class Network(object):
  def __init__(self):
    self._predictions = {}
    self._layers = {}
    self._sum = []

  def _anchor_component(self):
    with tf.variable_scope("ANCHOR_" + "default"):
      height = tf.to_int32(tf.ceil(self._im_info[0] / np.float32(4)))
      width = tf.to_int32(tf.ceil(self._im_info[1] / np.float32(4)))
      a, n = tf.py_func(
        anchors,
        [height, width, 4],
        [tf.float32, tf.int32],
        name="generate_anchors",
      )
      a.set_shape([None, 4])
      n.set_shape([])
      self._anchors, self._anchor_length = a, n

  def _crop_pool(self, bottom, rois, name):
    with tf.variable_scope(name):
      batch_ids = tf.squeeze(
        tf.slice(rois, [0, 0], [-1, 1], name="batch_id"), [1]
      )
      bottom_shape = tf.shape(bottom)
      height = (tf.to_float(bottom_shape[1]) - 1.0) * np.float32(1)
      width = (tf.to_float(bottom_shape[2]) - 1.0) * np.float32(1)
      x1 = tf.slice(rois, [0, 1], [-1, 1], name="x1") / width
      y1 = tf.slice(rois, [0, 2], [-1, 1], name="y1") / height
      x2 = tf.slice(rois, [0, 3], [-1, 1], name="x2") / width
      y2 = tf.slice(rois, [0, 4], [-1, 1], name="y2") / height
      bboxes = tf.stop_gradient(tf.concat([y1, x1, y2, x2], axis=1))
      return tf.image.crop_and_resize(
        bottom, bboxes, tf.to_int32(batch_ids), [4, 4], name="crops"
      )

  def build(self, data, info, gt):
    self._im_info = tf.reshape(info, [3])
    self._anchor_component()
    scores = tf.reduce_sum(self._anchors, axis=1) * 0.01
    rois, s = tf.py_func(
      proposal,
      [scores, self._anchors, np.float32(0.3)],
      [tf.float32, tf.float32],
      name="proposal",
    )
    rois.set_shape([None, 5])
    s.set_shape([None])
    inds = tf.random_shuffle(tf.range(tf.shape(rois)[0]), seed=1)[:4]
    top, idx = tf.nn.top_k(s, k=tf.minimum(4, tf.shape(s)[0]))
    sel = tf.gather(rois, idx)
    with tf.control_dependencies([inds]):
      pooled = self._crop_pool(data, sel, "pool5")
    overl = tf.where(
      tf.greater(gt[:, 4], 1.5), gt[:, 4], tf.zeros_like(gt[:, 4])
    )
    keep = tf.where(tf.not_equal(gt[:, -1], -1))
    keep = tf.reshape(keep, [-1])
    self._predictions["rois"] = sel
    self._predictions["pool"] = tf.reduce_mean(pooled, [1, 2, 3])
    self._predictions["gt"] = tf.reshape(tf.gather(overl, keep), [-1])
    self._predictions["n"] = self._anchor_length
    return self._predictions


def main():
  layer = RoIDataLayer(9)
  tf.set_random_seed(3)
  data = tf.placeholder(tf.float32, shape=[1, None, None, 3])
  info = tf.placeholder(tf.float32, shape=[1, 3])
  gt = tf.placeholder(tf.float32, shape=[None, 5])
  q = tf.FIFOQueue(3, [tf.float32, tf.float32, tf.float32], name="blobs")
  put = q.enqueue([data, info, gt])
  d, i, g = q.dequeue()
  d.set_shape([1, None, None, 3])
  i.set_shape([1, 3])
  g.set_shape([None, 5])
  net = Network()
  out = net.build(d, i, g)
  size = q.size()
  print(sorted((k, str(v.get_shape())) for k, v in out.items()))
  tfconfig = tf.ConfigProto(allow_soft_placement=True)
  tfconfig.gpu_options.allow_growth = True
  with tf.Session(config=tfconfig) as sess:
    coord = tf.train.Coordinator()

    def load():
      try:
        for _ in range(6):
          if coord.should_stop():
            return
          b = layer.forward()
          sess.run(
            put,
            feed_dict={data: b["data"], info: b["im_info"], gt: b["gt_boxes"]},
          )
        sess.run(q.close())
      except tf.errors.CancelledError:
        pass

    t = threading.Thread(target=load)
    t.daemon = True
    t.start()
    try:
      it = 0
      while it < cfg.MAX:
        p = sess.run(out)
        it += 1
        print(
          it,
          p["n"],
          p["rois"].astype(int).tolist(),
          np.round(p["pool"].astype(np.float64), 1).tolist(),
          p["gt"].tolist(),
        )
    except tf.errors.OutOfRangeError as e:
      print("done", type(e).__name__, e.op.name)
    coord.request_stop()
    coord.join([t])
    print(sess.run(size))


main()
