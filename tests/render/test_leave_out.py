"""What the theme brings and no reader needs is left out."""

from profiler_job.analysis.site.leave_out import on_post_page


def test_indentation_goes_except_where_it_is_content():
    page = (
        "<div>\n    <p>a\n  b</p>\n\n\n  <pre><code>x:\n    y\n\n    z</code></pre>\n  <script>\n  1\n</script>\n</div>"
    )
    kept = "<div>\n<p>a\nb</p>\n<pre><code>x:\n    y\n\n    z</code></pre>\n<script>\n  1\n</script>\n</div>"
    assert on_post_page(page) == kept


def test_words_on_two_lines_stay_two_words_and_one_line_stays_as_it_is():
    assert on_post_page("<b>a</b> \n\n  <i>b</i>  c") == "<b>a</b>\n<i>b</i>  c"


def test_cells_end_where_the_next_tag_ends_them():
    table = "<table><tr><th>a</th><th>b</th></tr>\n<tr><td>1</td><td><b>2</b></td></tr></table>"
    assert on_post_page(table) == "<table><tr><th>a<th>b</tr>\n<tr><td>1<td><b>2</b></tr></table>"
    assert on_post_page("<pre><td>1</td><td></pre>") == "<pre><td>1</td><td></pre>"


def test_a_name_in_the_menu_stands_alone():
    entry = '<a href="x.html" class="md-nav__link"><span class="md-ellipsis"> A &amp; b </span></a>'
    assert on_post_page(entry) == '<a href="x.html" class="md-nav__link">A &amp; b</a>'
